"""Seed-OSS: Llama's blocks with biases on q, k and v, and on the output or the MLP if asked."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("seed_oss",)
KEYS = Keys(
    harmless=frozenset({"residual_dropout"}),
    gguf_tensors={
        "attention_bias": "blk.0.attn_q.bias", "attention_out_bias": "blk.0.attn_output.bias",
        "mlp_bias": "blk.0.ffn_gate.bias",
    },
)  # fmt: skip
NAMES = Names(gguf={"post_attention_layernorm": "post_attention_norm"})


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `SeedOssConfig`."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 524288
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = True
    attention_out_bias: bool = False
    mlp_bias: bool = False


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="seed_oss", eps=config.rms_norm_eps)
    mixer = attention(
        config,
        rope=rope_table(config, context),
        biased=config.attention_bias,
        output_biased=config.attention_out_bias,
    )
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
