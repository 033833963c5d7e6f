"""Primitives that normalise the last axis of a row."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation
from cortiq.ir.op import LastAxis, Op, Type, expect
from cortiq.ir.options import Constant, Epsilon
from cortiq.numerics.streams import Streams


@dataclass(frozen=True)
class RMSNorm(LastAxis):
    """x / sqrt(mean x² + eps) · (offset + weight) over the last axis (`numerics.norms.rms_norm`).

    `offset` is 1 for checkpoints that store w of (1 + w); the sum is formed once, when a program
    is compiled. Without `weighted` there is no weight.
    """

    width: Count
    eps: Epsilon
    offset: Constant = 0.0
    weighted: bool = True

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the gain, if there is one."""
        return {"weight": (self.width,)} if self.weighted else {}


@dataclass(frozen=True)
class LayerNorm(LastAxis):
    """(x − mean) / sqrt(var + eps) · (offset + weight) [+ bias] (`numerics.norms.layer_norm`).

    `offset` is that of `RMSNorm`. Without `weighted` there is neither weight nor bias.
    """

    width: Count
    eps: Epsilon
    biased: bool = True
    offset: Constant = 0.0
    weighted: bool = True
    relations = (
        Relation(
            ("biased", "weighted"), "a norm with a bias has a weight",
            lambda norm: norm.weighted or not norm.biased,
        ),
    )  # fmt: skip

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare gain and bias."""
        gain: dict[str, tuple[int, ...]] = {"weight": (self.width,)} if self.weighted else {}
        return gain | {"bias": (self.width,)} if self.biased else gain


@dataclass(frozen=True)
class L2Norm(LastAxis):
    """x / sqrt(Σx² + eps) over the last axis (`numerics.norms.l2_norm`)."""

    width: Count
    eps: Epsilon


@dataclass(frozen=True)
class Softmax(LastAxis):
    """e^x / Σe^x over the last axis (`numerics.route.softmax`)."""

    width: Count


@dataclass(frozen=True)
class Sinkhorn(Op):
    """Matrices whose rows and columns sum to 1, f32[n, n] → the same (`numerics.streams.sinkhorn`).

    `rounds` of the Sinkhorn-Knopp iteration on the softmax of each row; `eps` is added to it and to
    every sum.
    """

    streams: Streams
    rounds: Count
    eps: Epsilon

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the shape."""
        wanted = (Type((self.streams, self.streams)),)
        expect(inputs == wanted, f"Sinkhorn takes {wanted}, got {inputs}")
        return inputs
