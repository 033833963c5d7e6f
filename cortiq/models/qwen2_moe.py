"""Qwen 1.5 and 2 MoE: Qwen 2 with a mixture of experts, and one that every token passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedMLP, MoE
from cortiq.models import qwen2
from cortiq.models.config import Keys
from cortiq.models.layer_kinds import is_stepped_sparse
from cortiq.models.names import Names
from cortiq.models.parts import MLP, MOE, Decoder, activation
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("qwen2_moe", "qwen2moe")
GGUF = ("qwen2moe",)
KEYS = Keys(
    gguf={
        "attention.sliding_window": "",
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    gguf_tensors={"qkv_bias": "blk.0.attn_q.bias"},
)
SHARED_EXPERT: Mapping[str, str] = {
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
"""Tensors of the expert that every token passes, as GGUF files call them."""
NAMES = Names(gguf=SHARED_EXPERT)
EXPERTS: Mapping[str, str] = {
    **MOE, **{f"shared_{role}": f"shared_expert.{tensor}" for role, tensor in MLP.items()},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(qwen2.Config):
    """Fields of `Qwen2MoeConfig`."""

    num_key_value_heads: int | None = 16
    qkv_bias: bool = True
    num_experts: int = 60
    num_experts_per_tok: int = 4
    norm_topk_prob: bool = False
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] | None = None

    def is_local(self, layer: int) -> bool:
        """Return whether a layer is every other one of the first `max_window_layers`."""
        return layer % 2 == 0 and layer < self.max_window_layers

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return is_stepped_sparse(layer, self.decoder_sparse_step, self.mlp_only_layers)


def experts_of(config: Any, *, renormalise: bool) -> MoE:
    """Return the experts of a layer, beside one that every token passes, times its own factor."""
    return MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=Router(config.num_experts_per_tok, renormalise=renormalise),
        activation=activation(config.hidden_act),
        shared_inner=config.shared_expert_intermediate_size,
        shared_factor=True,
    )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, rope = config.hidden_size, rope_table(config, context)
    act = activation(config.hidden_act)
    decoder = Decoder(config, context, family="qwen2_moe", eps=config.rms_norm_eps)
    mlp = GatedMLP(width, config.intermediate_size, act)
    experts = experts_of(config, renormalise=config.norm_topk_prob)
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        mixer = Attention(
            width=width,
            heads=config.num_attention_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_width,
            rope=rope,
            window=window,
            biased=config.qkv_bias,
        )
        x = decoder.mixer(x, n, mixer)
        if config.is_sparse(n):
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
