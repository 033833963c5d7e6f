"""Embedding, Linear and sums of rows, and what the other layers build on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import Count, Real, Relation
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.op import Op, Type, expect_last
from cortiq.ir.options import Constant

Fraction = Annotated[float, Real(2.0**-40, 1.0, zero=True)]
"""A part of a difference."""


class Layer(Op):
    """Base of the layers: operators with a decomposition."""

    primitive = False

    @property
    def attends(self) -> bool:
        """Whether the layer is attention over the keys and values of a slot, `kv`."""
        return "kv" in self.slot_kinds()

    @property
    def head_rows(self) -> int:
        """Return how many rows, of one width, the matrix `o` multiplies joined: one of each head
        or pair of heads. 0 if it multiplies none.
        """
        return 0


def rows_for(scope: Scope, role: str, x: Value, name: str) -> Value:
    """Return the row in the form the weight in `role` takes: quantised, or floats for `f32`."""
    if scope.layout(role) == "f32":
        return x
    return scope.add(ops.Quantise(), x, name=f"{name}.quantise")


def linear(
    scope: Scope, x: Value, role: str, inner: int, outer: int, biased: bool = False
) -> Value:
    """Write a `Linear` inside a layer, whose weight is the layer's `role` (bias `role`_bias)."""
    weights = {"weight": role} | ({"bias": f"{role}_bias"} if biased else {})
    return scope.add(Linear(inner, outer, biased), x, name=role, weights=weights)


@dataclass(frozen=True)
class Embedding(Layer):
    """Row of the token table, times `multiplier`: i32[] → f32[width]."""

    vocab: Count
    width: Count
    multiplier: Constant = 1.0

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one row."""
        return ops.EmbedRows(self.vocab, self.width).infer(*inputs)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the table."""
        return {"table": (self.vocab, self.width)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write EmbedRows, Scale."""
        rows = ops.EmbedRows(self.vocab, self.width)
        x = scope.add(rows, *inputs, name="rows", weights={"table": "table"})
        if self.multiplier == 1.0:
            return x
        return scope.add(ops.Scale(self.multiplier), x, name="scaled")


@dataclass(frozen=True)
class Linear(Layer):
    """x·Wᵀ [+ bias], W [out, in], over the last axis."""

    in_width: Count
    out_width: Count
    biased: bool = False

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer [..., in] → [..., out]."""
        (x,) = inputs
        expect_last(self, x, self.in_width)
        return (Type((*x.shape[:-1], self.out_width)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare matrix and bias."""
        matrix: dict[str, tuple[int, ...]] = {"weight": (self.out_width, self.in_width)}
        return matrix | {"bias": (self.out_width,)} if self.biased else matrix

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Quantise, MatMul, Bias."""
        x = rows_for(scope, "weight", inputs[0], "x")
        matmul = ops.MatMul(self.in_width, self.out_width)
        y = scope.add(matmul, x, name="matmul", weights={"weight": "weight"})
        if not self.biased:
            return y
        return scope.add(ops.Bias(self.out_width), y, name="biased", weights={"bias": "bias"})


@dataclass(frozen=True)
class Residual(Layer):
    """h + multiplier · branch."""

    multiplier: Constant = 1.0

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require two values of one shape."""
        return ops.Add().infer(*inputs)

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Scale, Add."""
        hidden, branch = inputs
        if self.multiplier != 1.0:
            branch = scope.add(ops.Scale(self.multiplier), branch, name="scaled")
        return scope.add(ops.Add(), hidden, branch, name="sum")


@dataclass(frozen=True)
class Blend(Layer):
    """a + fraction · (b − a), from 0.5 on b − (1 − fraction) · (b − a): value residuals.

    Source: torch.lerp, whose two forms these are.
    """

    fraction: Fraction
    relations = (
        Relation(
            ("fraction",), "1 - fraction is 0 or at least 2^-40",
            lambda blend: blend.fraction == 1 or 1 - blend.fraction >= 2.0**-40,
        ),
    )  # fmt: skip

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require two values of one shape."""
        return ops.Add().infer(*inputs)

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Scale, Add, Scale, Add."""
        a, b = inputs
        near = self.fraction < 0.5
        less = scope.add(ops.Scale(-1.0), a, name="negated")
        part = scope.add(ops.Add(), b, less, name="difference")
        factor = self.fraction if near else self.fraction - 1.0
        part = scope.add(ops.Scale(factor), part, name="scaled")
        return scope.add(ops.Add(), a if near else b, part, name="blended")
