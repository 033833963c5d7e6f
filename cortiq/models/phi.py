"""Phi 1 and 2: attention and a plain MLP read one LayerNorm; biases everywhere, the head's too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, activation, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("phi", "phi2")
GGUF = ("phi2",)
KEYS = Keys(
    only={"qk_layernorm": False},
    gguf={"attention.layer_norm_epsilon": "layer_norm_eps"},
)
NAMES = Names(
    folder={"model.norm.": "model.final_layernorm."},
    gguf={"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
)
TENSORS: Mapping[str, str] = {**ATTENTION, "o": "dense.weight", "o_bias": "dense.bias"}
FEED_FORWARD: Mapping[str, str] = {
    "up": "fc1.weight", "up_bias": "fc1.bias", "down": "fc2.weight", "down_bias": "fc2.bias",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `PhiConfig`."""

    layer_norm_eps: float = 1e-5
    hidden_act: str = "gelu_new"
    default_turned: ClassVar[float] = 0.5


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
    decoder = Decoder(config, context, family="phi", norm=norm)
    rope = rope_table(config, context)
    mixer = attention(config, rope=rope, biased=True, output_biased=True)
    mlp = MLP(config.hidden_size, config.intermediate_size, activation(config.hidden_act), True)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        row = decoder.norm(x, f"layers.{n}.norm", f"model.layers.{n}.input_layernorm")
        x = decoder.mixer(x, n, mixer, table=TENSORS, before=None, read=row)
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD, before=None, read=row)
    return decoder.finish(x, biased=True)
