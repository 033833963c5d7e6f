"""Qwen 3, dense: Qwen 2 with normed query and key heads in place of the biases."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedMLP, QKNorm
from cortiq.models import qwen2
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation
from cortiq.models.rope import rope_table

ARCHITECTURES = ("qwen3",)
KEYS = qwen2.KEYS
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(qwen2.Config):
    """Fields of `Qwen3Config`."""

    head_dim: int | None = 128
    attention_bias: bool = False


def build(config: Config, context: int) -> Program:
    """The trunk."""
    width, rope = config.hidden_size, rope_table(config, context)
    decoder = Decoder(config, context, family="qwen3", eps=config.rms_norm_eps)
    mlp = GatedMLP(width, config.intermediate_size, activation(config.hidden_act))
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        mixer = Attention(
            width=width,
            heads=config.num_attention_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_width,
            rope=rope,
            window=window,
            qk_norm=QKNorm(config.rms_norm_eps),
            biased=config.attention_bias,
            output_biased=config.attention_bias,
        )
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
