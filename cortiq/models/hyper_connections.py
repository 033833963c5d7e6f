"""Trunks whose branches read, write and mix residual streams by learned weights (mHC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.ir import Op, Program, Value
from cortiq.ir.layers import StreamEntry, StreamMean, StreamRead, StreamWrite
from cortiq.models.config import BaseConfig
from cortiq.models.parts import Decoder
from cortiq.models.tensor_pieces import FusedTensor

ROLES = ("pre", "post", "comb")
"""Of the weights that streams are read and written with, in the order of the file."""
FUSED = tuple(
    FusedTensor(name, tuple(f"{name}.{role}" for role in ROLES), bare=True)
    for name in ("hc_attn_base", "hc_attn_scale", "hc_ffn_base", "hc_ffn_scale")
)
STREAMS: Mapping[str, str] = {
    "mix": "fn", **{f"{role}_{what}": f"{what}.{role}.weight" for role in ROLES
                    for what in ("base", "scale")},
}  # fmt: skip
LAST: Mapping[str, str] = {"mix": "hc_fn", "pre_base": "hc_base", "pre_scale": "hc_scale"}
BRANCHES: Mapping[str, tuple[str, str]] = {
    "attention": ("hc_attn", "middle"), "mlp": ("hc_ffn", "out"),
}  # fmt: skip
"""Branches of a layer: the beginning of their tensors' names, and the streams after them."""


@dataclass(frozen=True, kw_only=True)
class HyperConnected(BaseConfig):
    """Fields of configurations with hyper-connections.

    Attributes
    ----------
    hc_mult : streams. hc_eps : added to weights and the sums they are divided by.
    hc_sinkhorn_iters : rounds that make a mix doubly stochastic.
    """

    rms_norm_eps: float = 1e-6
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6


class HyperConnectedDecoder(Decoder):
    """A decoder whose branches read streams and write to them."""

    def __init__(self, config: HyperConnected, context: int, *, family: str) -> None:
        super().__init__(config, context, family=family, eps=config.rms_norm_eps)
        self._sizes = config.hc_mult, config.hidden_size
        self._read = StreamRead(
            *self._sizes, config.rms_norm_eps, config.hc_eps, config.hc_sinkhorn_iters
        )

    def streams(self) -> Value:
        """Write the token's row in every stream."""
        return self.builder.add(StreamEntry(*self._sizes), self.embed(), name="streams")

    def read(self, streams: Value, n: int, branch: str) -> tuple[Value, ...]:
        """Write the row that a branch of the `n`th layer reads, and how its output is written."""
        tensors = f"model.layers.{n}.{BRANCHES[branch][0]}"
        weights = {role: f"{tensors}_{STREAMS[role]}" for role in self._read.weight_shapes()}
        name = f"layers.{n}.{branch}_read"
        return self.builder.add_node(self._read, streams, name=name, weights=weights)

    def write(self, streams: Value, y: Value, how: Sequence[Value], n: int, branch: str) -> Value:
        """Write the streams with a branch's output, `how` as `read` has it."""
        name = f"layers.{n}.{BRANCHES[branch][1]}"
        return self.builder.add(StreamWrite(*self._sizes), streams, y, *how, name=name)

    def through(self, streams: Value, n: int, op: Op, branch: str, **options: Any) -> Value:
        """Write the streams after a branch, whose `options` are those of `mixer`."""
        row, *how = self.read(streams, n, branch)
        y = self.mixer(None, n, op, name=branch, read=row, **options)
        return self.write(streams, y, how, n, branch)

    def collapsed(self, streams: Value) -> Program:
        """Finish with the sum of the streams by learned weights."""
        last = replace(self._read, last=True, rounds=1)
        weights = {role: f"model.hc_head.{LAST[role]}" for role in last.weight_shapes()}
        return self.finish(self.builder.add(last, streams, name="collapsed", weights=weights))

    def averaged(self, streams: Value) -> Program:
        """Finish with the mean of the streams."""
        return self.finish(self.builder.add(StreamMean(*self._sizes), streams, name="collapsed"))
