"""Ling 2 and Ring 2: half of every head rotated after a norm; experts in groups, by sigmoid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.gguf_keys import ABSENT, BY_SIGMOID, GROUPED_EXPERTS
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, attention, gated_mlp, grouped_router
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("bailing_moe_v2", "bailingmoe2")
GGUF = ("bailingmoe2",)
KEYS = Keys(
    harmless=frozenset({
        "embedding_dropout", "max_window_layers", "mtp_loss_scaling_factor", "output_dropout",
        "router_dtype", "use_sliding_window",
    }),
    only={
        "moe_router_enable_expert_bias": True, "norm_head": False, "norm_softmax": False,
        "score_function": "sigmoid", "topk_method": "noaux_tc", "use_bias": False,
        "use_rmsnorm": True,
    },
    aliases={"num_shared_experts": "n_shared_experts"},
    gguf={
        **GROUPED_EXPERTS, "expert_count": "num_experts",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    },
    gguf_absent=ABSENT,
    gguf_only=BY_SIGMOID,
    gguf_tensors={
        "use_qkv_bias": "blk.0.attn_qkv.bias", "use_qk_norm": "blk.0.attn_q_norm.weight",
    },
)  # fmt: skip
QKV = ("attention.q", "attention.k", "attention.v")
NAMES = Names(
    folder={"model.embed_tokens.": "model.word_embeddings."},
    fused=(FusedTensor("attention.query_key_value", QKV),),
    gguf={
        "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
        "attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm",
        "mlp.gate.expert_bias": "exp_probs_b.bias",
    },
)  # fmt: skip
TENSORS: Mapping[str, str] = {
    **{role: f"{role}.weight" for role in "qkv"},
    **{f"{role}_bias": f"{role}.bias" for role in "qkv"},
    "o": "dense.weight", "q_norm": "query_layernorm.weight", "k_norm": "key_layernorm.weight",
}  # fmt: skip
EXPERTS: Mapping[str, str] = {**MOE, "bias": "gate.expert_bias"}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `BailingMoeV2Config`."""

    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    use_qkv_bias: bool = False
    use_qk_norm: bool = True
    num_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 512
    n_shared_experts: int = 1
    moe_shared_expert_intermediate_size: int | None = None
    n_group: int = 8
    topk_group: int = 4
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    first_k_dense_replace: Amount = Amount(0)
    num_nextn_predict_layers: Amount = Amount(0)
    rotary_dim: int | None = None
    default_turned: ClassVar[float] = 0.5


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="bailing_moe_v2", eps=config.rms_norm_eps)
    mixer = attention(
        config, rope=rope_table(config, context), biased=config.use_qkv_bias,
        qk_norm=QKNorm(config.rms_norm_eps) if config.use_qk_norm else None,
    )  # fmt: skip
    router = grouped_router(
        config.num_experts_per_tok, config.norm_topk_prob, config.routed_scaling_factor,
        config.n_group, config.topk_group,
    )  # fmt: skip
    inner = config.moe_intermediate_size
    shared = (config.moe_shared_expert_intermediate_size or inner) * config.n_shared_experts
    mlp = gated_mlp(config, config.hidden_act)
    experts = MoE(
        config.hidden_size, inner, config.num_experts, router, activation(config.hidden_act),
        selection_bias=True, shared_inner=shared,
    )  # fmt: skip
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, tensors="attention", table=TENSORS)
        if n < config.first_k_dense_replace:
            x = decoder.feed_forward(x, n, mlp)
        else:
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
    return decoder.finish(x)
