"""Gemma 2: Gemma 3's blocks without qk-norm, soft-capped; every other layer has a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import Attention
from cortiq.models import gemma3
from cortiq.models.config import Keys
from cortiq.models.layer_kinds import windows
from cortiq.models.parts import Decoder, attention, gated_mlp, norm_offset
from cortiq.models.rope import rope_table
from cortiq.numerics.rope import RopeTable

ARCHITECTURES = ("gemma2",)
KEYS = Keys(
    same_as={"hidden_act": "hidden_activation"},
    gguf={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
)
NAMES = gemma3.NAMES


@dataclass(frozen=True, kw_only=True)
class Config(gemma3.ScaledConfig):
    """Fields of `Gemma2Config`."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] | None = None
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0
    layers_of_27b: ClassVar[int] = 46

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers = range(self.num_hidden_layers)
        if self.layer_types is None:
            return tuple(None if n % 2 else self.sliding_window for n in layers)
        return windows(self.layer_types, len(layers), self.sliding_window)


def mixer_of(config: Config, rope: RopeTable, window: int | None) -> Attention:
    """Return a layer's attention."""
    return attention(
        config, scale=config.query_scale, rope=rope, window=window,
        soft_cap=config.attn_logit_softcapping, biased=config.attention_bias,
        output_biased=config.attention_bias,
    )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    offset = norm_offset(config)
    decoder = Decoder(config, context, family="gemma2", eps=config.rms_norm_eps, offset=offset)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_activation)
    x = decoder.embed(math.sqrt(config.hidden_size))
    for n, window in enumerate(config.windows()):
        mixer = mixer_of(config, rope, window)
        x = decoder.mixer(x, n, mixer, after="post_attention_layernorm")
        x = decoder.feed_forward(x, n, mlp, before=gemma3.BEFORE_MLP, after=gemma3.AFTER_MLP)
    return decoder.finish(x, soft_cap=config.final_logit_softcapping)
