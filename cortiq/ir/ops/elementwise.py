"""Primitives on one row: elementwise functions, norms, and shape changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cortiq.ir.op import Op, Type, expect, expect_last
from cortiq.numerics.norms import checked_epsilon
from cortiq.numerics.scalar import check_soft_cap


@dataclass(frozen=True)
class Add(Op):
    """a + b, one rounding (`numerics.add`)."""

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Two f32 values of one shape."""
        return _same_shape(self, inputs)


@dataclass(frozen=True)
class Multiply(Op):
    """a · b elementwise, one rounding (`numerics.multiply`)."""

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Two f32 values of one shape."""
        return _same_shape(self, inputs)


def _same_shape(op: Op, inputs: tuple[Type, ...]) -> tuple[Type, ...]:
    a, b = inputs
    expect(a == b and a.dtype == "f32", f"{op.kind} takes two equal f32 shapes, got {a} and {b}")
    return (a,)


@dataclass(frozen=True)
class Scale(Op):
    """x · factor, factor rounded to float32 at compile time (`numerics.scale`)."""

    factor: float

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Any f32 value."""
        return _f32(self, inputs)


@dataclass(frozen=True)
class Bias(Op):
    """x + bias over the last axis (`numerics.add`)."""

    width: int

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """f32[..., width]."""
        expect_last(self, inputs[0], self.width)
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The vector added."""
        return {"bias": (self.width,)}


@dataclass(frozen=True)
class Activation(Op):
    """One of the scalar functions, elementwise (`numerics.scalar.activation`)."""

    function: str

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Any f32 value."""
        return _f32(self, inputs)


@dataclass(frozen=True)
class SoftCap(Op):
    """cap · tanh(x / cap) (`numerics.scalar.soft_cap`)."""

    cap: float

    def check_constants(self) -> None:
        """The cap."""
        check_soft_cap(self.cap)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Any f32 value."""
        return _f32(self, inputs)


def _f32(op: Op, inputs: tuple[Type, ...]) -> tuple[Type, ...]:
    (x,) = inputs
    expect(x.dtype == "f32", f"{op.kind} takes f32, got {x}")
    return (x,)


@dataclass(frozen=True)
class RMSNorm(Op):
    """x / sqrt(mean x² + eps) · (offset + weight) over the last axis (`numerics.norms.rms_norm`).

    `offset` is 1 for checkpoints that store w of (1 + w); the sum is formed once, when a program
    is compiled. Without `weighted` there is no weight.
    """

    width: int
    eps: float
    offset: float = 0.0
    weighted: bool = True

    def check_constants(self) -> None:
        """The eps."""
        checked_epsilon(self.eps)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """f32[..., width]."""
        expect_last(self, inputs[0], self.width)
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The gain, if there is one."""
        return {"weight": (self.width,)} if self.weighted else {}


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x − mean) / sqrt(var + eps) · weight [+ bias] (`numerics.norms.layer_norm`)."""

    width: int
    eps: float
    biased: bool = True

    def check_constants(self) -> None:
        """The eps."""
        checked_epsilon(self.eps)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """f32[..., width]."""
        expect_last(self, inputs[0], self.width)
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Gain and bias."""
        gain: dict[str, tuple[int, ...]] = {"weight": (self.width,)}
        return gain | {"bias": (self.width,)} if self.biased else gain


@dataclass(frozen=True)
class Slice(Op):
    """Values start ≤ i < stop of the last axis."""

    start: int
    stop: int

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Narrows the last axis."""
        (x,) = _f32(self, inputs)
        expect(0 <= self.start < self.stop <= x.shape[-1], f"{self.describe()} of {x}")
        return (Type((*x.shape[:-1], self.stop - self.start)),)


@dataclass(frozen=True)
class Concat(Op):
    """Inputs one after the other along the last axis."""

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Widens the last axis."""
        lead = {(x.shape[:-1], x.dtype) for x in inputs}
        expect(len(lead) == 1 and inputs[0].dtype == "f32", f"Concat takes f32 values: {inputs}")
        return (Type((*inputs[0].shape[:-1], sum(x.shape[-1] for x in inputs))),)


@dataclass(frozen=True)
class Reshape(Op):
    """The same values in another shape, row-major."""

    shape: tuple[int, ...]

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keeps the number of values."""
        (x,) = _f32(self, inputs)
        expect(math.prod(x.shape) == math.prod(self.shape), f"{self.describe()} of {x}")
        return (Type(self.shape),)
