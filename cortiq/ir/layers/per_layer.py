"""Per-layer embeddings: rows of a second table that gate a small branch of every layer."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation, Size
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Epsilon, Function


@dataclass(frozen=True)
class PerLayerInputs(Layer):
    """Inputs of every layer from a token's embedding: i32[], f32[width] → f32[layers·dim].

    y = (RMSNorm(Linear(x)·width^(−1/2)) + table[token]·dim^(1/2)) · 2^(−1/2), the norm over the
    `dim` values of each layer; x is the scaled embedding. Ids past the table look up zeros.
    Source: Gemma 3n and Gemma 4.
    """

    vocab: Count
    width: Count
    layers: Count
    dim: Count
    eps: Epsilon

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one row with the inputs of all layers."""
        wanted = (Type((), "i32"), Type((self.width,)))
        expect(inputs == wanted, f"PerLayerInputs takes {wanted}, got {inputs}")
        return (Type((self.layers * self.dim,)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare table, projection, norm."""
        n = self.layers * self.dim
        return {"table": (self.vocab, n), "projection": (n, self.width), "norm": (self.dim,)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write EmbedRows, Scale, Linear, Scale, RMSNorm, Add, Scale."""
        token, x = inputs
        n = self.layers * self.dim
        look = ops.EmbedRows(self.vocab, n, missing=True)
        rows = scope.add(look, token, name="rows", weights={"table": "table"})
        rows = scope.add(ops.Scale(self.dim**0.5), rows, name="rows.scaled")
        y = linear(scope, x, "projection", self.width, n)
        y = scope.add(ops.Scale(self.width**-0.5), y, name="projection.scaled")
        y = scope.add(ops.Reshape((self.layers, self.dim)), y, name="projection.layers")
        norm = ops.RMSNorm(self.dim, self.eps)
        y = scope.add(norm, y, name="projection.norm", weights={"weight": "norm"})
        y = scope.add(ops.Reshape((n,)), y, name="projection.flat")
        y = scope.add(ops.Add(), y, rows, name="sum")
        return scope.add(ops.Scale(2.0**-0.5), y, name="scaled")


@dataclass(frozen=True)
class PerLayerGate(Layer):
    """A branch, Linear(activation(Linear(x)) · p): f32[width], f32[layers·dim] → f32[width].

    p is the part of the second input that belongs to `layer`.
    """

    width: Count
    layers: Count
    dim: Count
    layer: Size
    activation: Function = "gelu_tanh"
    relations = (
        Relation(("layer", "layers"), "layer is below layers", lambda g: g.layer < g.layers),
    )

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        wanted = (Type((self.width,)), Type((self.layers * self.dim,)))
        expect(inputs == wanted, f"PerLayerGate takes {wanted}, got {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare gate and projection."""
        return {"gate": (self.dim, self.width), "projection": (self.width, self.dim)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, Activation, Slice, Multiply, Linear."""
        x, given = inputs
        own = ops.Slice(self.layer * self.dim, (self.layer + 1) * self.dim)
        mine = scope.add(own, given, name="input")
        gate = linear(scope, x, "gate", self.width, self.dim)
        gate = scope.add(ops.Activation(self.activation), gate, name="activation")
        y = scope.add(ops.Multiply(), gate, mine, name="product")
        return linear(scope, y, "projection", self.dim, self.width)
