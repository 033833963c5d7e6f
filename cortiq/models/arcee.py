"""Arcee's AFM: Llama's blocks with a plain MLP of squared ReLUs."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import MLP
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("arcee",)
KEYS = Keys(
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `ArceeConfig`."""

    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    hidden_act: str = "relu2"
    attention_bias: bool = False
    mlp_bias: bool = False


def build(config: Config, context: int) -> Program:
    """Build the trunk; GGUF files hold q and k rows pair by pair."""
    width, act = config.hidden_size, activation(config.hidden_act)
    decoder = Decoder(config, context, family="arcee", eps=config.rms_norm_eps)
    mixer = attention(
        config,
        rope=rope_table(config, context),
        pairing="interleaved" if config.source == "gguf" else "half",
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )
    mlp = MLP(width, config.intermediate_size, act, config.mlp_bias)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
