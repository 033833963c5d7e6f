"""Attention residuals: a branch reads a mix of the sums that earlier blocks of layers left.

Source: Moonshot AI, "Attention residuals", 2026 (arXiv 2603.15031); Kimi K3.
"""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Epsilon


@dataclass(frozen=True)
class AttentionResidual(Layer):
    """Rows weighted by their scores: Σ_i p[i]·row_i, p = softmax(score(RMSNorm(row_i))).

    `rows` inputs f32[width], the current sum last → f32[width]. The score is a Linear to one
    number; rows are summed as they are, in their order.

    Attributes
    ----------
    weighted : the norm has a weight `norm` (folders); GGUF files multiply it into the score.
    """

    rows: Count
    width: Count
    eps: Epsilon
    weighted: bool = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one row."""
        wanted = (Type((self.width,)),) * self.rows
        expect(inputs == wanted, f"AttentionResidual takes {self.rows} f32[{self.width}]: {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the norm and the score."""
        norm: dict[str, tuple[int, ...]] = {"norm": (self.width,)} if self.weighted else {}
        return norm | {"score": (1, self.width)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Concat, Reshape, RMSNorm, Linear, Softmax, CombineExperts."""
        rows = scope.add(ops.Concat(), *inputs, name="joined")
        rows = scope.add(ops.Reshape((self.rows, self.width)), rows, name="rows")
        norm, weights = ops.RMSNorm(self.width, self.eps, weighted=self.weighted), {}
        if self.weighted:
            weights = {"weight": "norm"}
        y = scope.add(norm, rows, name="normed", weights=weights)
        y = linear(scope, y, "score", self.width, 1)
        y = scope.add(ops.Reshape((self.rows,)), y, name="scores")
        y = scope.add(ops.Softmax(self.rows), y, name="shares")
        return scope.add(ops.CombineExperts(), y, rows, name="mixed")
