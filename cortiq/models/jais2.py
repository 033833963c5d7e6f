"""Jais 2: LayerNorms, a plain MLP of squared ReLUs, biases everywhere unless asked."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("jais2",)
KEYS = Keys(
    gguf={"attention.layer_norm_epsilon": "layer_norm_eps"},
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Jais2Config`."""

    max_position_embeddings: int = 8192
    hidden_act: str = "relu2"
    attention_bias: bool = True
    mlp_bias: bool = True
    layer_norm_eps: float = 1e-5


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, biased = config.hidden_size, config.attention_bias
    norm = LayerNorm(width, config.layer_norm_eps)
    decoder = Decoder(config, context, family="jais2", norm=norm)
    rope = rope_table(config, context)
    mixer = attention(config, rope=rope, biased=biased, output_biased=biased)
    act = activation(config.hidden_act)
    mlp = MLP(width, config.intermediate_size, act, config.mlp_bias)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
