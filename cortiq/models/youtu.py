"""Youtu-LLM: DeepSeek V3's latent attention and an MLP in every layer."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models.config import Keys
from cortiq.models.mla import JOINT, LatentConfig, latent_attention, names_of
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("youtu",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    same_as={"head_dim": "qk_rope_head_dim"}, harmless=frozenset({"embedding_initializer_range"})
)
NAMES = Names(fused=(JOINT,))


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig):
    """Fields of `YoutuConfig`."""

    num_key_value_heads: int | None = 16
    max_position_embeddings: int = 131072
    tie_word_embeddings: bool = True
    rope_interleave: bool = True


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="youtu", eps=config.rms_norm_eps)
    pairing = "interleaved" if config.rope_interleave else "half"
    mixer = latent_attention(config, rope_table(config, context), pairing)
    mlp, names = gated_mlp(config, config.hidden_act), names_of(config)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, table=names)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
