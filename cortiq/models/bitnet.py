"""BitNet b1.58: Llama's blocks with squared ReLUs and a norm before each branch's last matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import GatedMLP
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, Decoder, activation, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("bitnet",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names()
TENSORS: Mapping[str, str] = {**ATTENTION, "output_norm": "attn_sub_norm.weight"}
FEED_FORWARD: Mapping[str, str] = {**MLP, "inner_norm": "ffn_sub_norm.weight"}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `BitNetConfig`; the ternary matrices are those of the folder (`formats`)."""

    num_key_value_heads: int | None = 5
    rms_norm_eps: float = 1e-5
    hidden_act: str = "relu2"
    attention_bias: bool = False
    default_theta: ClassVar[float] = 500000.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    eps, act = config.rms_norm_eps, activation(config.hidden_act)
    decoder = Decoder(config, context, family="bitnet", eps=eps)
    mixer = attention(
        config,
        rope=rope_table(config, context),
        biased=config.attention_bias,
        output_biased=config.attention_bias,
        output_norm=eps,
    )
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, act, inner_norm=eps)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, table=TENSORS)
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD)
    return decoder.finish(x)
