"""Mixtral: Llama's blocks with a mixture of experts in place of the MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import Attention, MoE
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("mixtral", "llama+experts")
GGUF = ("llama+experts",)
KEYS = Keys()
NAMES = Names(
    gguf={
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.experts.w1": "ffn_gate_exps",
        "block_sparse_moe.experts.w3": "ffn_up_exps",
        "block_sparse_moe.experts.w2": "ffn_down_exps",
    }
)
EXPERTS: Mapping[str, str] = {
    "router": "gate.weight",
    "gate": "experts.w1.weight",
    "up": "experts.w3.weight",
    "down": "experts.w2.weight",
}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MixtralConfig`."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    sliding_window: int | None = None
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    default_theta: ClassVar[float] = 1000000.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width = config.hidden_size
    decoder = Decoder(config, context, family="mixtral", eps=config.rms_norm_eps)
    mixer = Attention(
        width=width,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(config, context),
        pairing="interleaved" if config.source == "gguf" else "half",
        window=config.sliding_window,
    )
    router = Router(config.num_experts_per_tok, "softmax", renormalise=True)
    inner, act = config.intermediate_size, activation(config.hidden_act)
    experts = MoE(width, inner, config.num_local_experts, router, act)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, tensors="block_sparse_moe", table=EXPERTS)
    return decoder.finish(x)
