"""Primitives on one row: elementwise functions and shape changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cortiq.domains import Count, Relation, Size
from cortiq.ir.op import Elementwise, LastAxis, Op, Type, expect, expect_f32, expect_last
from cortiq.ir.options import Cap, Constant, Function
from cortiq.numerics.column_order import ColumnOrder


class Pairwise(Op):
    """Base of primitives of two f32 values of one shape."""

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require two f32 values of one shape."""
        a, b = inputs
        equal = a == b and a.dtype == "f32"
        expect(equal, f"{self.kind} takes two equal f32 shapes, got {a} and {b}")
        return (a,)


@dataclass(frozen=True)
class Add(Pairwise):
    """a + b, one rounding (`numerics.add`)."""


@dataclass(frozen=True)
class Multiply(Pairwise):
    """a · b elementwise, one rounding (`numerics.multiply`)."""


@dataclass(frozen=True)
class Scale(Elementwise):
    """x · factor, factor rounded to float32 at compile time (`numerics.scale`)."""

    factor: Constant


@dataclass(frozen=True)
class Bias(LastAxis):
    """x + bias over the last axis (`numerics.add`)."""

    width: Count

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the vector added."""
        return {"bias": (self.width,)}


@dataclass(frozen=True)
class Activation(Elementwise):
    """One of the scalar functions, elementwise (`numerics.scalar.activation`)."""

    function: Function

    def options(self) -> frozenset[str]:
        """Return the function."""
        return frozenset({self.function})


@dataclass(frozen=True)
class SoftCap(Elementwise):
    """cap · tanh(x / cap) (`numerics.scalar.soft_cap`)."""

    cap: Cap


@dataclass(frozen=True)
class Slice(Op):
    """Values start, start + step, … below stop of the last axis (a step of 2: every other one)."""

    start: Size
    stop: Count
    step: Count = 1
    relations = (Relation(("start", "stop"), "start is below stop", lambda s: s.start < s.stop),)

    def options(self) -> frozenset[str]:
        """Return `step` if it is above 1."""
        return frozenset({"step"}) if self.step != 1 else frozenset()

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Narrow the last axis."""
        (x,) = expect_f32(self, inputs)
        expect(bool(x.shape) and self.stop <= x.shape[-1], f"{self.describe()} of {x}")
        return (Type((*x.shape[:-1], len(range(self.start, self.stop, self.step)))),)


@dataclass(frozen=True)
class IndexSelect(Op):
    """out[i] = x[index[i]], −2⁴⁰ where the index is of no value (`numerics.route.index_select`).

    f32[in_width] → f32[out_width]: scores of a part of the vocabulary at their places in all of it.
    A weight `index` [out_width] holds whole numbers.
    """

    in_width: Count
    out_width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the row that is selected."""
        wanted = (Type((self.in_width,)),)
        expect(inputs == wanted, f"IndexSelect takes {wanted}, got {inputs}")
        return (Type((self.out_width,)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the indices."""
        return {"index": (self.out_width,)}


@dataclass(frozen=True)
class Concat(Op):
    """Inputs one after the other along the last axis."""

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Widen the last axis."""
        lead = {(x.shape[:-1], x.dtype) for x in inputs}
        fits = len(lead) == 1 and all(x.shape and x.dtype == "f32" for x in inputs)
        expect(fits, f"Concat takes f32 values: {inputs}")
        return (Type((*inputs[0].shape[:-1], sum(x.shape[-1] for x in inputs))),)


@dataclass(frozen=True)
class Permute(Op):
    """The values of the last axis in another order (`numerics.column_order.permute`).

    It stands before a product whose matrix has its columns in that order.
    """

    order: ColumnOrder

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the shape."""
        (x,) = inputs
        expect_last(self, x, len(self.order))
        return inputs


@dataclass(frozen=True)
class Reshape(Op):
    """The values in another shape, row-major."""

    shape: tuple[Count, ...]

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the number of values."""
        (x,) = expect_f32(self, inputs)
        expect(math.prod(x.shape) == math.prod(self.shape), f"{self.describe()} of {x}")
        return (Type(self.shape),)
