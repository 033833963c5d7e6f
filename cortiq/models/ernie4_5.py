"""ERNIE 4.5, dense: Llama's blocks that rotate neighbouring elements, biased if asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("ernie4_5",)
KEYS = Keys(gguf_tensors={"use_bias": "blk.0.attn_q.bias"})
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Ernie4_5Config`."""

    num_key_value_heads: int | None = 2
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    use_bias: bool = False
    default_theta: ClassVar[float] = 500000.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="ernie4_5", eps=config.rms_norm_eps)
    biased = config.use_bias
    mixer = attention(
        config, rope=rope_table(config, context), pairing="interleaved", biased=biased,
        output_biased=biased,
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act, biased)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
