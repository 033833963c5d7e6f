"""Residual streams that are read through gates of low rank, and n-grams that are added to them.

Source: Qwen3.8-Flash-Next (`qwen4_exp`); hyper-connections: Zhu et al., 2024 (arXiv 2409.19606).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cortiq.domains import Count
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear, rows_for
from cortiq.ir.layers.moments import ones
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Epsilon
from cortiq.ir.slots import Ring, Slot
from cortiq.numerics.streams import Streams


def _normed(scope: Scope, streams: Value, eps: float, role: str) -> Value:
    """Write the RMSNorm of every stream with a weight for each value of all: f32[n·width]."""
    n, width = streams.type.shape
    y = scope.add(ops.RMSNorm(width, eps, weighted=False), streams, name=f"{role}.unit")
    y = scope.add(ops.Reshape((n * width,)), y, name=f"{role}.flat")
    return scope.add(ops.Gain(n * width), y, name=role, weights={"weight": role})


def _copies(scope: Scope, row: Value, count: int, factors: Value, name: str) -> Value:
    """Write a row in every stream, times the stream's factor."""
    (width,) = row.type.shape
    y = scope.add(ops.Concat(), *(row,) * count, name=f"{name}.copies")
    y = scope.add(ops.Reshape((count, width)), y, name=f"{name}.streams")
    return scope.add(ops.ScaleRows(), y, factors, name=name)


@dataclass(frozen=True)
class GatedStreamRead(Layer):
    """The row that a branch reads of the streams: f32[n, width] → f32[width], f32[n, 1].

    s = RMSNorm of every stream; g = σ(Linear(silu(Linear(s) / n))), a gate for each value; the row
    is the mean of the streams g·s, and 2σ(Linear(s) / n) the weights of the branch's output. With
    `last` the row only, for what follows the last layer.

    Attributes
    ----------
    rank : width between the two matrices of the gates.
    """

    streams: Streams
    width: Count
    rank: Count
    eps: Epsilon
    last: bool = False

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the row, and the weights."""
        wanted = Type((self.streams, self.width))
        expect(inputs == (wanted,), f"GatedStreamRead takes {wanted}, got {inputs}")
        row = Type((self.width,))
        return (row,) if self.last else (row, Type((self.streams, 1)))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the norm, and the matrices of gates and weights."""
        whole = self.streams * self.width
        shapes: dict[str, tuple[int, ...]] = {
            "norm": (whole,), "down": (self.rank, whole), "up": (whole, self.rank),
        }  # fmt: skip
        return shapes if self.last else {**shapes, "inject": (self.streams, whole)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value | tuple[Value, ...]:
        """Write RMSNorm, Gain, Linear, Scale, Activation, Multiply, CombineExperts."""
        (streams,), n, whole = inputs, self.streams, self.streams * self.width
        flat = _normed(scope, streams, self.eps, "norm")
        y = linear(scope, flat, "down", whole, self.rank)
        y = scope.add(ops.Scale(1 / n), y, name="down.scaled")
        y = scope.add(ops.Activation("silu"), y, name="down.activation")
        y = linear(scope, y, "up", self.rank, whole)
        y = scope.add(ops.Activation("sigmoid"), y, name="gates")
        y = scope.add(ops.Multiply(), flat, y, name="gated")
        y = scope.add(ops.Reshape((n, self.width)), y, name="gated.streams")
        shares = scope.add(ops.Scale(1 / n), ones(scope, flat, n, "one"), name="shares")
        row = scope.add(ops.CombineExperts(), shares, y, name="row")
        if self.last:
            return row
        y = linear(scope, flat, "inject", whole, n)
        y = scope.add(ops.Scale(1 / n), y, name="inject.scaled")
        y = scope.add(ops.Activation("sigmoid"), y, name="inject.sigmoid")
        y = scope.add(ops.Scale(2.0), y, name="inject.doubled")
        return row, scope.add(ops.Reshape((n, 1)), y, name="inject.column")


@dataclass(frozen=True)
class GatedStreamWrite(Layer):
    """Every stream and the branch's output, times the stream's weight.

    f32[n, width], the branch f32[width], weights f32[n, 1] → f32[n, width].
    """

    streams: Streams
    width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the streams."""
        n, row = self.streams, Type((self.width,))
        wanted = (Type((n, self.width)), row, Type((n, 1)))
        expect(inputs == wanted, f"GatedStreamWrite takes {wanted}, got {inputs}")
        return inputs[:1]

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Concat, Reshape, ScaleRows, Add."""
        streams, branch, weights = inputs
        y = _copies(scope, branch, self.streams, weights, "written")
        return scope.add(ops.Add(), streams, y, name="sum")


@dataclass(frozen=True)
class StreamNGrams(Layer):
    """The streams and what the last tokens add to them: f32[n, width], token → f32[n, width].

    e = rows of a table by the hashed n-grams that end at the token, side by side; v = Linear(e);
    for every stream k = RMSNorm(Linear(e)), g = σ(signed_root(k·RMSNorm(stream) / √width)) and
    u = g·v; stream + u + silu(conv(RMSNorm(u))).

    Attributes
    ----------
    hashes : which rows. rows, dim : of the table. kernel : rows that the convolution looks back at,
        with the taps that a dilation leaves out.
    The weight `gate` [n, 1, width] holds the norms' weights of k and stream, multiplied, by √width.
    """

    streams: Streams
    width: Count
    hashes: ops.HashNGrams
    rows: Count
    dim: Count
    kernel: Count
    eps: Epsilon
    writes_slots = True

    @property
    def embedded(self) -> int:
        """Width of the rows of the table, side by side."""
        return len(self.hashes.heights) * self.dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the streams."""
        wanted = (Type((self.streams, self.width)), Type((), "i32"))
        expect(inputs == wanted, f"StreamNGrams takes {wanted}, got {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare table, projections, gate, norm and taps."""
        whole = self.streams * self.width
        return {
            "table": (self.rows, self.dim), "key": (whole, self.embedded),
            "value": (self.width, self.embedded), "gate": (self.streams, 1, self.width),
            "conv_norm": (whole,), "conv": (whole, self.kernel),
        }  # fmt: skip

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the tokens before, and the last rows of the convolution."""
        tokens = self.hashes.slot_kinds()["ring"]
        return {"tokens": tokens, "ring": Ring(self.streams * self.width, self.kernel - 1)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write HashNGrams, EmbedRows, Linear, RMSNorm, Multiply, HeadMatMul, Activation,
        ScaleRows, Gain, CausalConv, Add.
        """
        (streams, token), n, whole = inputs, self.streams, self.streams * self.width
        y = scope.add(self.hashes, token, name="hashes", slots={"ring": "tokens"})
        table = ops.EmbedRows(self.rows, self.dim)
        y = scope.add(table, y, name="grams.rows", weights={"table": "table"})
        grams = scope.add(ops.Reshape((self.embedded,)), y, name="grams")
        key = linear(scope, grams, "key", self.embedded, whole)
        key = scope.add(ops.Reshape((n, self.width)), key, name="key.streams")
        norm = ops.RMSNorm(self.width, self.eps, weighted=False)
        key, query = (
            scope.add(norm, x, name=f"{role}.norm")
            for x, role in ((key, "key"), (streams, "query"))
        )
        gate = self._gate(scope, scope.add(ops.Multiply(), key, query, name="products"))
        value = linear(scope, grams, "value", self.embedded, self.width)
        added = _copies(scope, value, n, gate, "added")
        y = _normed(scope, added, self.eps, "conv_norm")
        conv, roles = ops.CausalConv(whole, self.kernel), {"weight": "conv"}
        y = scope.add(conv, y, name="conv", weights=roles, slots={"ring": "ring"})
        y = scope.add(ops.Activation("silu"), y, name="conv.activation")
        y = scope.add(ops.Reshape((n, self.width)), y, name="conv.streams")
        y = scope.add(ops.Add(), added, y, name="local")
        return scope.add(ops.Add(), streams, y, name="sum")

    def _gate(self, scope: Scope, products: Value) -> Value:
        """Write the gate of every stream: f32[n, 1]."""
        rows: Any = rows_for(scope, "gate", products, "products")
        matmul = ops.HeadMatMul(self.streams, self.width, 1)
        y = scope.add(matmul, rows, name="gate.sums", weights={"weight": "gate"})
        y = scope.add(ops.Activation("signed_root"), y, name="gate.root")
        return scope.add(ops.Activation("sigmoid"), y, name="gate")
