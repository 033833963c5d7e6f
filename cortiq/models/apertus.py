"""Apertus: Llama's blocks with normed query and key heads, and xIELU in a plain MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import QKNorm, XieluMLP
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("apertus",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(only={"hidden_act": "xielu", "mlp_bias": False, "post_norm": False, "qk_norm": True})
NAMES = Names(unread=r"model\.layers\.\d+\.mlp\.act_fn\.eps")
FEED_FORWARD: Mapping[str, str] = {
    "up": "up_proj.weight", "down": "down_proj.weight", "alpha_p": "act_fn.alpha_p",
    "alpha_n": "act_fn.alpha_n", "beta": "act_fn.beta",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `ApertusConfig`."""

    max_position_embeddings: int = 65536
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    default_theta: ClassVar[float] = 12000000.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="apertus", eps=config.rms_norm_eps)
    mixer = attention(
        config,
        rope=rope_table(config, context),
        qk_norm=QKNorm(config.rms_norm_eps),
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )
    mlp = XieluMLP(config.hidden_size, config.intermediate_size)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, before="attention_layernorm")
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD, before="feedforward_layernorm")
    return decoder.finish(x)
