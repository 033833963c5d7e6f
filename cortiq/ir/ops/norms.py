"""Primitives that normalise the last axis of a row."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir.op import LastAxis
from cortiq.numerics.norms import checked_epsilon


class Norm(LastAxis):
    """Base of those with an eps."""

    eps: float

    def check_constants(self) -> None:
        """The eps."""
        checked_epsilon(self.eps)


@dataclass(frozen=True)
class RMSNorm(Norm):
    """x / sqrt(mean x² + eps) · (offset + weight) over the last axis (`numerics.norms.rms_norm`).

    `offset` is 1 for checkpoints that store w of (1 + w); the sum is formed once, when a program
    is compiled. Without `weighted` there is no weight.
    """

    width: int
    eps: float
    offset: float = 0.0
    weighted: bool = True

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The gain, if there is one."""
        return {"weight": (self.width,)} if self.weighted else {}


@dataclass(frozen=True)
class LayerNorm(Norm):
    """(x − mean) / sqrt(var + eps) · weight [+ bias] (`numerics.norms.layer_norm`)."""

    width: int
    eps: float
    biased: bool = True

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Gain and bias."""
        gain: dict[str, tuple[int, ...]] = {"weight": (self.width,)}
        return gain | {"bias": (self.width,)} if self.biased else gain


@dataclass(frozen=True)
class L2Norm(Norm):
    """x / sqrt(Σx² + eps) over the last axis (`numerics.norms.l2_norm`)."""

    width: int
    eps: float


@dataclass(frozen=True)
class Softmax(LastAxis):
    """e^x / Σe^x over the last axis (`numerics.route.softmax`)."""

    width: int
