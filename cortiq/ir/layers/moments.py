"""Sums over a row of its own values, composed of the primitives: means, magnitudes, deviations.

A row of n = a·b values is added up as a rows of b, then the b sums, each in order (`CombineExperts`
with ones), a the largest divisor of n up to √n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cortiq.domains import Count
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer
from cortiq.ir.op import Type, expect_last
from cortiq.ir.options import Epsilon
from cortiq.numerics.norms import EPSILON

TINY = EPSILON.low
"""Added under roots where a family adds nothing."""


def ones(scope: Scope, x: Value, count: int, name: str) -> Value:
    """Return ones, made from values that a row has."""
    y = scope.add(ops.Slice(0, count), x, name=f"{name}.part")
    y = scope.add(ops.Scale(0.0), y, name=f"{name}.nothing")
    return scope.add(ops.Shift(1.0), y, name=f"{name}.ones")


def mean(scope: Scope, x: Value, name: str) -> Value:
    """Write Σ x / n: f32[n] → f32[1]."""
    (n,) = x.type.shape
    rows = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    y = x
    for count, wide in ((rows, n // rows), (n // rows, 1)):
        weights = ones(scope, y, count, f"{name}.{count}x{wide}")
        square = scope.add(ops.Reshape((count, wide)), y, name=f"{name}.{count}x{wide}.rows")
        y = scope.add(ops.CombineExperts(), weights, square, name=f"{name}.{count}x{wide}.sum")
    return scope.add(ops.Scale(1 / n), y, name=name)


def root_mean_square(scope: Scope, x: Value, name: str) -> Value:
    """Write √(Σ x² / n) as the mean of x·RMSNorm(x): f32[n] → f32[1]."""
    normed = scope.add(ops.RMSNorm(x.type.shape[-1], TINY, weighted=False), x, name=f"{name}.norm")
    return mean(scope, scope.add(ops.Multiply(), x, normed, name=f"{name}.products"), name)


def matched(scope: Scope, x: Value, size: Value, name: str) -> Value:
    """Write x with the root mean square `size`."""
    normed = scope.add(ops.RMSNorm(x.type.shape[-1], TINY, weighted=False), x, name=f"{name}.norm")
    return scope.add(ops.ScaleRows(), normed, size, name=name)


def centred(scope: Scope, x: Value, whole: Value, name: str) -> Value:
    """Write x − mean(x); `whole` has ones in x's shape."""
    middle = mean(scope, x, f"{name}.mean")
    middle = scope.add(ops.ScaleRows(), whole, middle, name=f"{name}.middle")
    less = scope.add(ops.Scale(-1.0), middle, name=f"{name}.less")
    return scope.add(ops.Add(), x, less, name=f"{name}.centred")


def above(scope: Scope, x: Value, deviations: float, name: str) -> Value:
    """Write max(x − mean(x) − deviations·deviation(x), 0): what a Gaussian's tail is of a row."""
    (n,) = x.type.shape
    whole = ones(scope, x, n, name)
    y = middle = centred(scope, x, whole, name)
    if deviations:
        spread = root_mean_square(scope, middle, f"{name}.deviation")
        cut = scope.add(ops.ScaleRows(), whole, spread, name=f"{name}.spread")
        cut = scope.add(ops.Scale(-deviations), cut, name=f"{name}.cut")
        y = scope.add(ops.Add(), middle, cut, name=f"{name}.over")
    return scope.add(ops.Activation("relu"), y, name=f"{name}.kept")


@dataclass(frozen=True)
class CentredNorm(Layer):
    """(x − mean) / sqrt(var + eps): a LayerNorm that learns nothing, f32[width] → f32[width]."""

    width: Count
    eps: Epsilon

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        (x,) = inputs
        expect_last(self, x, self.width)
        return inputs

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the sum of the row, Scale, ScaleRows, Add, RMSNorm."""
        (x,) = inputs
        y = centred(scope, x, ones(scope, x, self.width, "all"), "row")
        return scope.add(ops.RMSNorm(self.width, self.eps, weighted=False), y, name="norm")
