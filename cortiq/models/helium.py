"""Helium 1: Llama's blocks that rotate neighbouring elements."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("helium",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `HeliumConfig`."""

    num_key_value_heads: int | None = 20
    head_dim: int | None = 128
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-8
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="helium", eps=config.rms_norm_eps)
    rope = rope_table(config, context)
    mixer = attention(config, rope=rope, pairing="interleaved", biased=config.attention_bias)
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
