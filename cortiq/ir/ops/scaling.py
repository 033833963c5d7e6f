"""Primitives that multiply, move or bound values: gains, gates a row, constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import Count, OneOf, Relation, at_most
from cortiq.ir.op import Elementwise, Op, Type, expect, expect_last
from cortiq.ir.options import Constant
from cortiq.numerics.scaling import GAIN_FORMS

GAINS_PER = ("value", "head", "all")


@dataclass(frozen=True)
class Gain(Op):
    """x · g, g of a weight [width], one rounding (`numerics.scalar.multiply`).

    Parameters
    ----------
    width : number of gains.
    per : values of a gain. "value": value i of the last axis, f32[..., width]; "head":
        all values of head i, f32[width, n]; "all": everything (width is 1).
    form : formula of g from the file's w, once, when a program is compiled: "plain" w, "exp" e^w,
        "negative_exp" −e^w (decays stored as logarithms: A_log), "negative" w, which must not be
        above 0 (decays stored as they are), "softplus" ln(1 + e^w), "square" w², "magnitude" |w|;
        `numerics.scaling.gain`.
    """

    width: Count
    per: Annotated[str, OneOf(GAINS_PER)] = "value"
    form: Annotated[str, OneOf(GAIN_FORMS)] = "plain"
    relations = (
        Relation(("width", "per"), "one gain for all", lambda g: g.per != "all" or g.width == 1),
    )

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the shape."""
        (x,) = inputs
        axis = {"value": x.shape[-1:], "head": x.shape[:-1], "all": (1,)}[self.per]
        fits = x.dtype == "f32" and axis == (self.width,)
        expect(fits, f"Gain of {self.width} per {self.per} for {x}")
        return (x,)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the gains."""
        return {"weight": (self.width,)}


@dataclass(frozen=True)
class ScaleRows(Op):
    """Every value of a row's last axis times one of its own, one rounding (`scalar.multiply`).

    f32[..., n], f32[..., 1] → f32[..., n]: gates a head, the gate of a shared expert.
    """

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the first input's shape."""
        x, factor = inputs
        fits = x.dtype == factor.dtype == "f32" and factor.shape == (*x.shape[:-1], 1)
        expect(fits and bool(x.shape), f"ScaleRows takes f32[..., n] and f32[..., 1]: {inputs}")
        return (x,)


@dataclass(frozen=True)
class Shift(Elementwise):
    """x + amount, the amount rounded to float32 at compile time (`numerics.scaling.shift`)."""

    amount: Constant


@dataclass(frozen=True)
class Clamp(Elementwise):
    """min(max(x, low), high) by compares, exact (`numerics.scaling.clamp`); None: no bound."""

    low: Constant | None = None
    high: Constant | None = None
    relations = (at_most("low", "high"),)


@dataclass(frozen=True)
class ExpertGain(Op):
    """x times its expert's gain, one rounding (`numerics.scalar.multiply`).

    f32[k] or f32[k, n], i32[k] → the same: the scale of each expert, on weights or on outputs.
    """

    experts: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the first input's type."""
        x, index = inputs
        fits = x.dtype == "f32" and index.dtype == "i32" and 1 <= len(x.shape) <= 2
        fits = fits and x.shape[:1] == index.shape
        expect(fits, f"ExpertGain takes f32[k] or f32[k, n] and i32[k]: {inputs}")
        return (x,)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare a gain an expert."""
        return {"weight": (self.experts,)}


@dataclass(frozen=True)
class ExpertBias(Op):
    """x plus its expert's bias, one rounding (`numerics.scalar.add`).

    f32[k, width], i32[k] → f32[k, width].
    """

    experts: Count
    width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the first input's type."""
        x, index = inputs
        expect_last(self, x, self.width)
        return ExpertGain(self.experts).infer(x, index)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare a bias vector an expert."""
        return {"bias": (self.experts, self.width)}
