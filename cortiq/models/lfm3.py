"""LFM3: LFM2's short convolutions, gated attention with and without a window, norms around both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import Attention, AttentionGate, GatedMLP, QKNorm, ShortConv
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, LOCAL, layer_list, layer_ropes
from cortiq.models.lfm2 import CONV, FEED_FORWARD
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder

ARCHITECTURES = ("lfm3",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names()
CONVOLUTION = "conv"
TENSORS: Mapping[str, str] = {**ATTENTION, "gate": "gate_proj.weight"}
ROPE: Mapping[str, Mapping[str, Any]] = {
    GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000000.0},
    LOCAL: {"rope_type": "default", "rope_theta": 10000.0},
}
PERIOD, FULL_AT = 4, 2
"""Of every four layers the third sees everything and the first, but in the beginning, a window."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Lfm3Config`."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 128
    max_position_embeddings: int = 128000
    tie_word_embeddings: bool = True
    norm_eps: float = 1e-5
    conv_bias: bool = False
    conv_L_cache: int = 7
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = 256
    use_sandwich_norm: bool = True
    use_attention_gate: bool = True
    attention_bias: bool = False
    default_theta: ClassVar[float] = 1000000.0

    def kinds(self) -> tuple[str, ...]:
        """Return the kind of every layer."""
        places = {FULL_AT: GLOBAL, 0: LOCAL}
        layers = range(self.num_hidden_layers)
        usual = [places.get(n % PERIOD, CONVOLUTION) if n else CONVOLUTION for n in layers]
        return layer_list(self.layer_types or usual, len(layers), (CONVOLUTION, GLOBAL, LOCAL))


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, eps = config.hidden_size, config.norm_eps
    decoder = Decoder(config, context, family="lfm3", eps=eps)
    conv = ShortConv(width, config.conv_L_cache, config.conv_bias)
    attention = {
        kind: Attention(
            width, config.num_attention_heads, config.kv_heads, config.head_width, rope=rope,
            window=config.sliding_window if kind == LOCAL else None, qk_norm=QKNorm(eps),
            biased=config.attention_bias, output_biased=config.attention_bias,
            gate=AttentionGate("sigmoid", per_head=True) if config.use_attention_gate else None,
        )
        for kind, rope in layer_ropes(config, context, ROPE).items()
    }  # fmt: skip
    mlp = GatedMLP(width, config.intermediate_size)
    after = ("post_operator_norm", "post_ffn_norm") if config.use_sandwich_norm else (None, None)
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        if kind == CONVOLUTION:
            x = decoder.mixer(
                x, n, conv, name="conv", tensors="conv", table=CONV, before="operator_norm",
                after=after[0],
            )  # fmt: skip
        else:
            x = decoder.mixer(
                x, n, attention[kind], table=TENSORS, before="operator_norm", after=after[0]
            )
        x = decoder.feed_forward(
            x, n, mlp, tensors="feed_forward", table=FEED_FORWARD, before="ffn_norm", after=after[1]
        )
    return decoder.finish(x, norm="model.embedding_norm")
