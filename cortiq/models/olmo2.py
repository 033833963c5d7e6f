"""OLMo 2: norms after each block only; queries and keys normed over their whole width."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import Attention, QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table
from cortiq.numerics.rope import RopeTable

ARCHITECTURES = ("olmo2",)
KEYS = Keys()
NAMES = Names(
    gguf={
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
)


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Olmo2Config`."""

    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False


def mixer_of(config: Config, rope: RopeTable, window: int | None = None) -> Attention:
    """Return a layer's attention."""
    return attention(
        config, rope=rope, window=window, qk_norm=QKNorm(config.rms_norm_eps, full_width=True),
        biased=config.attention_bias, output_biased=config.attention_bias,
    )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="olmo2", eps=config.rms_norm_eps)
    mixer = mixer_of(config, rope_table(config, context))
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, before=None, after="post_attention_layernorm")
        x = decoder.feed_forward(x, n, mlp, before=None, after="post_feedforward_layernorm")
    return decoder.finish(x)
