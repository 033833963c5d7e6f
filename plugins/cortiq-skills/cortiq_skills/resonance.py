"""Experts chosen by resonance: the subspace that a row is nearest to, within an expert's shell."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Size
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers import MoE

EXCLUDED = -(2.0**40)
"""Added to the score of an expert whose shell a row is outside of."""
SMALLEST = 2.0**-40
"""The smallest difference of two canonical values that is not 0."""
UNBOUNDED = float(2.0**50 - 2.0**26)
"""The shell of an expert without one: the largest canonical float32."""


@dataclass(frozen=True)
class ResonanceMoE(MoE):
    """Mixture of experts whose scores are offset − error; the rest is that of `MoE`.

    r = x − μ of each expert; error = ‖r‖² − ‖U·r‖², with its directions U. With `shelled`, an
    expert has no part in a row whose error is above its shell.

    Attributes
    ----------
    directions : of each expert. shelled : whether there are shells.
    """

    directions: Size = 0
    shelled: bool = False

    def score_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare −μ, U, offsets, −shells, and ones, by which a product is a sum."""
        shapes: dict[str, tuple[int, ...]] = {
            "minus_means": (self.experts * self.width,),
            "ones": (1, self.width),
            "offsets": (self.experts,),
        }
        if self.directions:
            shapes["basis"] = (self.experts, self.directions, self.width)
            shapes["basis_ones"] = (1, self.directions)
        return shapes | ({"minus_shells": (self.experts,)} if self.shelled else {})

    def scores(self, scope: Scope, x: Value) -> Value:
        """Write the scores.

        Concat, Bias, Multiply, MatMul (‖r‖²), HeadMatMul, Multiply, MatMul (‖U·r‖²), Scale, Add,
        Bias; with shells Bias, Clamp, Scale ×2, Add.
        """
        copies = scope.add(ops.Concat(), *[x] * self.experts, name="router.copies")
        bias = ops.Bias(self.experts * self.width)
        rest = scope.add(bias, copies, name="router.moved", weights={"bias": "minus_means"})
        rest = scope.add(ops.Reshape((self.experts, self.width)), rest, name="router.rest")
        error = self._squares(scope, rest, "ones", "router.length")
        if self.directions:
            op = ops.HeadMatMul(self.experts, self.width, self.directions)
            inside = scope.add(op, rest, name="router.inside", weights={"weight": "basis"})
            found = self._squares(scope, inside, "basis_ones", "router.found")
            found = scope.add(ops.Scale(-1.0), found, name="router.found.negative")
            error = scope.add(ops.Add(), error, found, name="router.error")
        scores = scope.add(ops.Scale(-1.0), error, name="router.error.negative")
        offsets = {"bias": "offsets"}
        scores = scope.add(ops.Bias(self.experts), scores, name="router.scores", weights=offsets)
        return self._within(scope, scores, error) if self.shelled else scores

    def _squares(self, scope: Scope, x: Value, ones: str, name: str) -> Value:
        """Write the sum of squares of each expert's row."""
        squares = scope.add(ops.Multiply(), x, x, name=f"{name}.squares")
        op = ops.MatMul(x.type.shape[-1], 1)
        sums = scope.add(op, squares, name=name, weights={"weight": ones})
        return scope.add(ops.Reshape((self.experts,)), sums, name=f"{name}.row")

    def _within(self, scope: Scope, scores: Value, error: Value) -> Value:
        """Write the scores less 2⁴⁰ where the error is above the shell, by whatever it is above."""
        shells = {"bias": "minus_shells"}
        over = scope.add(ops.Bias(self.experts), error, name="router.over", weights=shells)
        over = scope.add(ops.Clamp(0.0, SMALLEST), over, name="router.outside")
        for part in (1, 2):
            factor = -(SMALLEST**-1) if part == 1 else SMALLEST**-1
            over = scope.add(ops.Scale(factor), over, name=f"router.outside.{part}")
        return scope.add(ops.Add(), scores, over, name="router.shelled")
