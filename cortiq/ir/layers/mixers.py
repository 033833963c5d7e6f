"""Mixers whose state is not key and value rows."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.op import Type, expect
from cortiq.ir.slots import Ring, Slot


@dataclass(frozen=True)
class ShortConv(Layer):
    """LFM2's gated short convolution: f32[width] → f32[width].

    b, c, x' = Linear(x) split in three; y = Linear(c · conv(b · x')), `conv` causal and depthwise
    over `kernel` rows.
    """

    width: Count
    kernel: Count
    biased: bool = False
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        expect(inputs == (Type((self.width,)),), f"ShortConv takes f32[{self.width}]: {inputs}")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, taps and biases."""
        n = self.width
        shapes: dict[str, tuple[int, ...]] = {
            "in": (3 * n, n),
            "conv": (n, self.kernel),
            "out": (n, n),
        }
        if self.biased:
            shapes |= {f"{role}_bias": shape[:1] for role, shape in shapes.items()}
        return shapes

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the last kernel−1 inputs of the convolution."""
        return {"ring": Ring(self.width, self.kernel - 1)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, Slice ×3, Multiply, CausalConv, Multiply, Linear."""
        n = self.width
        projected = linear(scope, inputs[0], "in", n, 3 * n, self.biased)
        b, c, x = (
            scope.add(ops.Slice(i * n, (i + 1) * n), projected, name=part)
            for i, part in enumerate(("b", "c", "x"))
        )
        gated = scope.add(ops.Multiply(), b, x, name="gated")
        weights = {"weight": "conv"} | ({"bias": "conv_bias"} if self.biased else {})
        conv = ops.CausalConv(n, self.kernel, self.biased)
        y = scope.add(conv, gated, name="conv", weights=weights, slots={"ring": "ring"})
        y = scope.add(ops.Multiply(), c, y, name="product")
        return linear(scope, y, "out", n, n, self.biased)
