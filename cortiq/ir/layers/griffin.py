"""The recurrent block of Griffin: a gated linear recurrence beside a gate (RecurrentGemma)."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, divides
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear, rows_for
from cortiq.ir.layers.recurrent import shaped
from cortiq.ir.op import Type, expect_last
from cortiq.ir.options import Function
from cortiq.ir.slots import Recurrent, Ring, Slot

SHARPNESS = -8.0
"""Factor of a decay's logarithm."""


@dataclass(frozen=True)
class RGLRU(Layer):
    """Real-gated linear recurrent unit behind a convolution, times a gate: f32[width] → f32[width].

    x = conv(Linear(x')); r, i = σ of every head's own matrix on x; a = exp(−8·softplus(Λ)·r);
    h ← a·h + √(1 − a²)·i·x, of the first row h = i·x; Linear(h · activation(Linear(x'))).
    Source: De et al. (arXiv 2402.19427).

    Attributes
    ----------
    inner : width of the recurrence. heads : equal parts of it, each with matrices of its own.
    """

    width: Count
    inner: Count
    heads: Count
    kernel: Count
    activation: Function = "gelu_tanh"
    writes_slots = True
    relations = (divides("heads", "inner"),)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        (x,) = inputs
        expect_last(self, x, self.width)
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, taps, the gates' matrices, Λ."""
        n, part = self.inner, self.inner // self.heads
        wide, own = (n, self.width), (self.heads, part, part)
        return {
            "x": wide, "x_bias": (n,), "y": wide, "y_bias": (n,), "conv": (n, self.kernel),
            "conv_bias": (n,), "input": own, "input_bias": (n,), "decay": own, "decay_bias": (n,),
            "rate": (n,), "out": (self.width, n), "out_bias": (self.width,),
        }  # fmt: skip

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the last kernel−1 rows, h, and a count of rows."""
        return {
            "ring": Ring(self.inner, self.kernel - 1),
            "state": Recurrent((self.inner, 1, 1)),
            "count": Recurrent((1, 1, 1)),
        }

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear ×2, CausalConv, HeadMatMul ×2, Bias, Activation, Gain, StateSpace (rows counted),
        ScaleRows, Multiply, StateSpace, Multiply, Linear.
        """
        n = self.inner
        y = linear(scope, inputs[0], "y", self.width, n, True)
        y = scope.add(ops.Activation(self.activation), y, name="gate")
        x = linear(scope, inputs[0], "x", self.width, n, True)
        conv, taps = ops.CausalConv(n, self.kernel, True), {"weight": "conv", "bias": "conv_bias"}
        x = scope.add(conv, x, name="conv", weights=taps, slots={"ring": "ring"})
        heads = shaped(scope, x, "heads", self.heads, n // self.heads)
        given, rate = (self._gate(scope, heads, role) for role in ("input", "decay"))
        gain = ops.Gain(n, "value", "softplus")
        log = scope.add(gain, rate, name="rate", weights={"weight": "rate"})
        log = scope.add(ops.Scale(SHARPNESS), log, name="log_decay")
        decay = scope.add(ops.Activation("exp"), log, name="decay.exp")
        one = self._ones(scope, rate)
        root = self._root(scope, log, one)
        x = scope.add(ops.Multiply(), x, given, name="given")
        x = shaped(scope, x, "given.heads", n, 1)
        space, slots = ops.StateSpace(n, 1, 1), {"state": "state"}
        h = scope.add(space, x, one, one, decay, root, name="space", slots=slots)
        h = shaped(scope, h, "space.merged", n)
        h = scope.add(ops.Multiply(), h, y, name="gated")
        return linear(scope, h, "out", n, self.width, True)

    def _gate(self, scope: Scope, heads: Value, role: str) -> Value:
        """Return σ of every head's product, as one row."""
        part = self.inner // self.heads
        rows = rows_for(scope, role, heads, role)
        matmul = ops.HeadMatMul(self.heads, part, part)
        found = scope.add(matmul, rows, name=f"{role}.heads", weights={"weight": role})
        row = shaped(scope, found, f"{role}.merged", self.inner)
        bias = {"bias": f"{role}_bias"}
        row = scope.add(ops.Bias(self.inner), row, name=f"{role}.biased", weights=bias)
        return scope.add(ops.Activation("sigmoid"), row, name=f"{role}.sigmoid")

    def _ones(self, scope: Scope, row: Value) -> Value:
        """Return 1 as f32[1, 1]."""
        first = scope.add(ops.Slice(0, 1), row, name="first")
        zero = scope.add(ops.Scale(0.0), first, name="zero")
        return shaped(scope, scope.add(ops.Shift(1.0), zero, name="one"), "ones", 1, 1)

    def _root(self, scope: Scope, log: Value, one: Value) -> Value:
        """Return √(1 − a²), and 1 in the first row: a² there counts nothing.

        A recurrence counts the rows; what exceeds 1 of it, at most 1, is 0 in the first row.
        """
        single = shaped(scope, one, "single", 1)
        rows, slots = ops.StateSpace(1, 1, 1), {"state": "count"}
        count = scope.add(rows, one, one, one, single, single, name="count", slots=slots)
        later = scope.add(ops.Shift(-1.0), shaped(scope, count, "rows", 1), name="rows.before")
        later = scope.add(ops.Clamp(0.0, 1.0), later, name="later")
        square = scope.add(ops.Scale(2.0), log, name="log_square")
        square = scope.add(ops.Activation("exp"), square, name="square")
        square = scope.add(ops.ScaleRows(), square, later, name="square.later")
        less = scope.add(ops.Scale(-1.0), square, name="square.negated")
        rest = scope.add(ops.Shift(1.0), less, name="rest")
        return scope.add(ops.Activation("signed_root"), rest, name="root")
