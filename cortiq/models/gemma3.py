"""Gemma 3 and EmbeddingGemma: norms around each block, local windows, every sixth layer global."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.ir.layers import Attention, GatedMLP, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.encoder import BothWays
from cortiq.models.layer_kinds import GLOBAL, LOCAL, windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, norm_offset
from cortiq.models.rope import rope_table
from cortiq.numerics.rope import RopeTable

ARCHITECTURES = ("gemma3", "gemma3_text", "gemma-embedding")
GGUF = ("gemma3", "gemma-embedding")
KEYS = Keys(
    aliases={"_sliding_window_pattern": "sliding_window_pattern"},
    defaults={
        "gemma3_text": {"num_attention_heads": 8, "vocab_size": 262208},
        "gemma-embedding": {"use_bidirectional_attention": True},
    },
    gguf={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "rope.freq_base_swa": "rope_local_base_freq",
    },
    gguf_absent={"attention.sliding_window": 0},
)
NAMES = Names(
    gguf={
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        "2_Dense.linear": "dense_2",
        "3_Dense.linear": "dense_3",
    }
)
BEFORE_MLP, AFTER_MLP = "pre_feedforward_layernorm", "post_feedforward_layernorm"


@dataclass(frozen=True, kw_only=True)
class ScaledConfig(BaseConfig):
    """Fields of Gemma 2 and 3 that their query scale follows from.

    Attributes
    ----------
    layers_of_27b : of the one size whose scale is not that of its head width; GGUF files do not
        say so.
    """

    query_pre_attn_scalar: float | None = None
    layers_of_27b: ClassVar[int]

    @property
    def query_scale(self) -> float:
        """Factor on q·k: query_pre_attn_scalar^(−1/2), 256 if a config.json does not say."""
        scalar: float = self.head_width if self.source == "gguf" else 256
        if self.source == "gguf" and self.num_hidden_layers == self.layers_of_27b:
            scalar = self.hidden_size / self.num_attention_heads
        scalar = self.query_pre_attn_scalar or scalar
        if scalar < 0:
            raise FormatError(f"query_pre_attn_scalar is {scalar}", where="config")
        return scalar**-0.5


@dataclass(frozen=True, kw_only=True)
class Config(ScaledConfig):
    """Fields of `Gemma3TextConfig`.

    Attributes
    ----------
    use_bidirectional_attention : of EmbeddingGemma; half of a window is then on each side of a row.
    """

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 131072
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    sliding_window: Amount = Amount(4096)
    sliding_window_pattern: int = 6
    layer_types: tuple[str, ...] | None = None
    rope_local_base_freq: float = 10000.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool = False
    default_theta: ClassVar[float] = 1000000.0
    layers_of_27b: ClassVar[int] = 62

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers, pattern = range(self.num_hidden_layers), self.sliding_window_pattern
        window = int(self.sliding_window) or None
        if self.layer_types is None:
            return tuple(window if (n + 1) % pattern else None for n in layers)
        return windows(self.layer_types, len(layers), window)

    @property
    def half_window(self) -> int:
        """Keys on each side of a row that a layer with a window sees where rows see both sides.

        Raises
        ------
        FormatError : a window without a key on each side.
        """
        half = max((window // 2 for window in self.windows() if window), default=0)
        if not half and any(self.windows()):
            raise FormatError(f"sliding_window is {self.sliding_window}", where="config")
        return half


def attention(config: Config, window: int | None, rope: RopeTable) -> Attention:
    """Return a layer's attention."""
    return Attention(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        scale=config.query_scale,
        rope=rope,
        window=window,
        soft_cap=config.attn_logit_softcapping,
        qk_norm=QKNorm(config.rms_norm_eps, norm_offset(config)),
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )


def local_rope(config: Config, context: int) -> RopeTable:
    """Return the table of windowed layers: never scaled, unless the file has a separate entry."""
    if LOCAL in config.rope_parameters:
        return rope_table(config, context, LOCAL)
    return RopeTable(config.rope_local_base_freq, config.head_width)


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; one that sees images lets their rows see all of their image."""
    if config.use_bidirectional_attention and rows.last:
        raise UnsupportedError("rows see both sides and images", where="config")
    width, eps, offset = config.hidden_size, config.rms_norm_eps, norm_offset(config)
    decoder = Decoder(config, context, family="gemma3", eps=eps, offset=offset)
    seen = (decoder.builder.input(rows.last),) if rows.last else ()
    local, everywhere = local_rope(config, context), rope_table(config, context, GLOBAL)
    mlp = GatedMLP(width, config.intermediate_size, activation(config.hidden_activation))
    both = BothWays(decoder, config.half_window) if config.use_bidirectional_attention else None
    x = decoder.embed(math.sqrt(width))
    for n, window in enumerate(config.windows()):
        mixer = replace(
            attention(config, window, local if window else everywhere), until=bool(seen)
        )
        if both:
            mixer, last = both.attention(mixer)
            seen = (last,)
        x = decoder.mixer(x, n, mixer, after="post_attention_layernorm", others=seen)
        x = decoder.feed_forward(x, n, mlp, before=BEFORE_MLP, after=AFTER_MLP)
    if both:
        return both.finish(x)
    return decoder.finish(x, soft_cap=config.final_logit_softcapping)
