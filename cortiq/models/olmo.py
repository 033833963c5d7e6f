"""OLMo 1: Llama's blocks with LayerNorms without weights; q, k and v bounded if asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import CentredNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("olmo",)
KEYS = Keys(
    gguf={"attention.layer_norm_epsilon": "layer_norm_eps", "attention.clamp_kqv": "clip_qkv"}
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `OlmoConfig`; GGUF files write the epsilon too, which is the same everywhere."""

    hidden_act: str = "silu"
    attention_bias: bool = False
    clip_qkv: float | None = None
    layer_norm_eps: float = 1e-5
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "layer_norm_eps"})


def build(config: Config, context: int) -> Program:
    """Build the trunk; GGUF files hold q and k rows pair by pair."""
    norm = CentredNorm(config.hidden_size, config.layer_norm_eps)
    decoder = Decoder(config, context, family="olmo", norm=norm)
    mixer = attention(
        config, rope=rope_table(config, context), clip=config.clip_qkv,
        biased=config.attention_bias, output_biased=config.attention_bias,
        pairing="interleaved" if config.source == "gguf" else "half",
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
