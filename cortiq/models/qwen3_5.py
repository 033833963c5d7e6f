"""Qwen 3.5's text model: Qwen 3 Next with an MLP, and a delta net whose matrices lie apart."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program, Value
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.ir.layers import GatedMLP
from cortiq.models.config import Keys
from cortiq.models.layer_kinds import GLOBAL
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, norm_offset
from cortiq.models.qwen3_next import (
    DELTA,
    GATE_UP,
    GGUF_KEYS,
    GGUF_NAMES,
    HEAD_NOTES,
    ONLY,
    LinearConfig,
    delta_net,
    gated_attention,
)

ARCHITECTURES = ("qwen3_5_text", "qwen35")
GGUF = ("qwen35",)
KEYS = Keys(harmless=HEAD_NOTES, only=ONLY, gguf=GGUF_KEYS)
NAMES = Names(gguf=GGUF_NAMES, fused=(GATE_UP,))


@dataclass(frozen=True, kw_only=True)
class Config(LinearConfig):
    """Fields of `Qwen3_5TextConfig`."""

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768


class HybridDecoder(Decoder):
    """A decoder with the mixers of Qwen 3.5."""

    config: LinearConfig

    def __init__(
        self, config: LinearConfig, context: int, family: str, rows: ImageRows = TEXT_ONLY
    ) -> None:
        eps, offset = config.rms_norm_eps, norm_offset(config)
        super().__init__(config, context, family=family, eps=eps, offset=offset)
        self._delta = delta_net(config, tiled=config.source == "gguf")
        self._attention = gated_attention(config, context, rows.sections)
        self._axes = self.axes(rows)

    def mixed(self, x: Value, layer: int, kind: str) -> Value:
        """Write the branch of a layer's mixer."""
        if kind == GLOBAL:
            return self.mixer(x, layer, self._attention, others=self._axes)
        op, tensors = self._delta, "linear_attn"
        return self.mixer(x, layer, op, name="delta", tensors=tensors, table=DELTA)


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; one that sees images turns rows by their positions on several axes."""
    decoder = HybridDecoder(config, context, "qwen3_5", rows)
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, activation(config.hidden_act))
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        x = decoder.feed_forward(decoder.mixed(x, n, kind), n, mlp)
    return decoder.finish(x)
