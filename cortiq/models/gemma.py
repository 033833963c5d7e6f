"""Gemma 1: Llama's blocks with a GELU gate, norms of 1 + w and a scaled embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp, norm_offset
from cortiq.models.rope import rope_table

ARCHITECTURES = ("gemma",)
KEYS = Keys(aliases={"hidden_activation": "hidden_act"}, only={"use_bidirectional_attention": None})
NAMES = Names()
TANH = {"gelu": "gelu_pytorch_tanh"}
"""The first files name the exact GELU; the models were trained with the tanh form."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `GemmaConfig`."""

    num_key_value_heads: int | None = 16
    head_dim: int | None = 256
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_act: str = "gelu_pytorch_tanh"
    attention_bias: bool = False


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    eps, offset, biased = config.rms_norm_eps, norm_offset(config), config.attention_bias
    decoder = Decoder(config, context, family="gemma", eps=eps, offset=offset)
    mixer = attention(config, rope=rope_table(config, context), biased=biased, output_biased=biased)
    mlp = gated_mlp(config, TANH.get(config.hidden_act, config.hidden_act))
    x = decoder.embed(math.sqrt(config.hidden_size))
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
