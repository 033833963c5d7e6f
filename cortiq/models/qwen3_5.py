"""Qwen 3.5's text model: Qwen 3 Next with an MLP, and a delta net whose matrices lie apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.ir import Program, Value
from cortiq.ir.layers import GatedMLP
from cortiq.models.config import Keys
from cortiq.models.layer_kinds import GLOBAL
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation
from cortiq.models.qwen3_next import DELTA, LinearConfig, delta_net, gated_attention

ARCHITECTURES = ("qwen3_5_text",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names(unread=r"mtp\..*")
TENSORS: Mapping[str, str] = {
    **DELTA, **{role: f"in_proj_{role}.weight" for role in ("qkv", "z", "a", "b")},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(LinearConfig):
    """Fields of `Qwen3_5TextConfig`."""

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768


class HybridDecoder(Decoder):
    """A decoder with the mixers of Qwen 3.5."""

    config: LinearConfig

    def __init__(self, config: LinearConfig, context: int, family: str) -> None:
        super().__init__(config, context, family=family, eps=config.rms_norm_eps, offset=1.0)
        self._delta = delta_net(config, grouped=False)
        self._attention = gated_attention(config, context)

    def mixed(self, x: Value, layer: int, kind: str) -> Value:
        """The branch of a layer's mixer."""
        if kind == GLOBAL:
            return self.mixer(x, layer, self._attention)
        op, tensors = self._delta, "linear_attn"
        return self.mixer(x, layer, op, name="delta", tensors=tensors, table=TENSORS)


def build(config: Config, context: int) -> Program:
    """The trunk."""
    decoder = HybridDecoder(config, context, "qwen3_5")
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, activation(config.hidden_act))
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        x = decoder.feed_forward(decoder.mixed(x, n, kind), n, mlp)
    return decoder.finish(x)
