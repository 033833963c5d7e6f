"""MiniMax M2: half of every head rotated, whole-width query and key norms, biased experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router

ARCHITECTURES = ("minimax_m2", "minimax-m2")
GGUF = ("minimax-m2",)
KEYS = Keys(
    aliases={"num_experts": "num_local_experts"},
    harmless=frozenset({
        "mtp_transformer_layers", "num_mtp_modules", "router_jitter_noise", "use_mtp",
    }),
    only={
        "qk_norm_type": "per_layer", "scoring_func": "sigmoid", "shared_intermediate_size": 0,
        "use_qk_norm": True, "use_routing_bias": True,
    },
    gguf={"expert_feed_forward_length": "intermediate_size"},
    gguf_only={"expert_gating_func": 2},
)  # fmt: skip
MIXTURE = "block_sparse_moe"
NAMES = Names(
    gguf={
        f"{MIXTURE}.gate": "ffn_gate_inp",
        f"{MIXTURE}.e_score_correction_bias": "exp_probs_b.bias",
        f"{MIXTURE}.experts.w1": "ffn_gate_exps",
        f"{MIXTURE}.experts.w2": "ffn_down_exps",
        f"{MIXTURE}.experts.w3": "ffn_up_exps",
    },
    unread=r"model\.mtp_\w+\..*",
)
EXPERTS: Mapping[str, str] = {
    "router": "gate.weight", "bias": "e_score_correction_bias", "gate": "experts.w1.weight",
    "up": "experts.w3.weight", "down": "experts.w2.weight",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MiniMaxM2Config`.

    Attributes
    ----------
    rotary_dim : elements of a head that are rotated, as published files say it.
    attn_type_list : 1 for every layer, whose attention is softmax.
    """

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 196608
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    num_local_experts: int = 256
    num_experts_per_tok: int = 8
    rotary_dim: int | None = None
    attn_type_list: tuple[int, ...] | None = None
    default_theta: ClassVar[float] = 5000000.0


def rope(config: Config, context: int) -> RopeTable:
    """Return the table, of `rotary_dim` elements where the file gives them."""
    if config.rotary_dim is None:
        return rope_table(config, context)
    given = {
        "partial_rotary_factor": config.rotary_dim / config.head_width, **config.rope_parameters,
    }  # fmt: skip
    return rope_table(replace(config, rope_parameters=given), context)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    if set(config.attn_type_list or (1,)) != {1}:
        raise UnsupportedError("attn_type_list has layers of linear attention", where="config")
    decoder = Decoder(config, context, family="minimax_m2", eps=config.rms_norm_eps)
    mixer = attention(
        config, rope=rope(config, context), qk_norm=QKNorm(config.rms_norm_eps, full_width=True)
    )
    experts = MoE(
        width=config.hidden_size,
        inner=config.intermediate_size,
        experts=config.num_local_experts,
        router=Router(config.num_experts_per_tok, "sigmoid", renormalise=True),
        activation=activation(config.hidden_act),
        selection_bias=True,
    )
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, tensors=MIXTURE, table=EXPERTS)
    return decoder.finish(x)
