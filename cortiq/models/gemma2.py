"""Gemma 2: Gemma 3's blocks without qk-norm, soft-capped; every other layer has a window."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.models import gemma3
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import windows
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("gemma2",)
KEYS = Keys(
    same_as={"hidden_act": "hidden_activation"},
    gguf={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
)
NAMES = gemma3.NAMES
LAYERS_OF_27B = 46
"""The one size whose query scale is not that of its head width; GGUF files do not say so."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Gemma2Config`."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    query_pre_attn_scalar: float | None = None
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] | None = None
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0

    @property
    def query_scale(self) -> float:
        """Factor on q·k: query_pre_attn_scalar^(−1/2), 256 if a config.json does not say."""
        scalar: float = self.head_width if self.source == "gguf" else 256
        if self.source == "gguf" and self.num_hidden_layers == LAYERS_OF_27B:
            scalar = self.hidden_size / self.num_attention_heads
        scalar = self.query_pre_attn_scalar or scalar
        if scalar < 0:
            raise FormatError(f"query_pre_attn_scalar is {scalar}", where="config")
        return scalar**-0.5

    def windows(self) -> tuple[int | None, ...]:
        """The window of every layer, `None` where it sees everything."""
        layers = range(self.num_hidden_layers)
        if self.layer_types is None:
            return tuple(None if n % 2 else self.sliding_window for n in layers)
        return windows(self.layer_types, len(layers), self.sliding_window)


def build(config: Config, context: int) -> Program:
    """The trunk; norm weights are stored as w of (1 + w), except in GGUF files."""
    offset = 0.0 if config.source == "gguf" else 1.0
    decoder = Decoder(config, context, family="gemma2", eps=config.rms_norm_eps, offset=offset)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_activation)
    x = decoder.embed(math.sqrt(config.hidden_size))
    for n, window in enumerate(config.windows()):
        mixer = attention(
            config, scale=config.query_scale, rope=rope, window=window,
            soft_cap=config.attn_logit_softcapping, biased=config.attention_bias,
            output_biased=config.attention_bias,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer, after="post_attention_layernorm")
        x = decoder.feed_forward(x, n, mlp, before=gemma3.BEFORE_MLP, after=gemma3.AFTER_MLP)
    return decoder.finish(x, soft_cap=config.final_logit_softcapping)
