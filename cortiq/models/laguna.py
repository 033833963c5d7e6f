"""Laguna: heads by layer, a softplus gate on every head, normed queries and keys, experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Attention, AttentionGate, MoE, QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, LOCAL, layer_ropes, sparse_layers, windows
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, MOE, Decoder, activation, attention, gated_mlp
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router

ARCHITECTURES = ("laguna",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(only={"moe_apply_router_weight_on_input": False})
NAMES = Names()
TENSORS: Mapping[str, str] = {**ATTENTION, "gate": "g_proj.weight"}
EXPERTS: Mapping[str, str] = {
    **MOE,
    "bias": "experts.e_score_correction_bias",
    **{f"shared_{role}": f"shared_expert.{tensor}" for role, tensor in MLP.items()},
}
ROPE: Mapping[str, Mapping[str, Any]] = {
    GLOBAL: {"rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    LOCAL: {"rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `LagunaConfig`."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    gating: bool | str = True
    sliding_window: int = 512
    layer_types: tuple[str, ...] | None = None
    num_attention_heads_per_layer: tuple[int, ...] | None = None
    mlp_layer_types: tuple[str, ...] | None = None
    num_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    moe_routed_scaling_factor: float = 1.0
    moe_router_logit_softcapping: float = 0.0

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer: none by default."""
        layers = self.num_hidden_layers
        return windows(self.layer_types or (GLOBAL,) * layers, layers, self.sliding_window)

    def heads(self) -> tuple[int, ...]:
        """Return the number of query heads of every layer."""
        layers, listed = self.num_hidden_layers, self.num_attention_heads_per_layer
        if listed is None:
            return (self.num_attention_heads,) * layers
        if len(listed) != layers or 0 in listed:
            message = f"num_attention_heads_per_layer has {len(listed)} entries for {layers} layers"
            raise FormatError(message, where="config")
        return listed

    def routed(self) -> tuple[bool, ...]:
        """Return whether each layer has experts: all but the first by default."""
        layers = self.num_hidden_layers
        return sparse_layers(self.mlp_layer_types or ("dense", *("sparse",) * (layers - 1)), layers)


def mixer(config: Config, heads: int, window: int | None, rope: RopeTable) -> Attention:
    """Return a layer's attention."""
    return attention(
        replace(config, num_attention_heads=heads), rope=rope, window=window,
        qk_norm=QKNorm(config.rms_norm_eps), biased=config.attention_bias,
        output_biased=config.attention_bias,
        gate=AttentionGate("softplus", per_head=config.gating in (True, "per-head")),
    )  # fmt: skip


def experts(config: Config) -> MoE:
    """Return the experts of a sparse layer."""
    return MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=Router(
            config.num_experts_per_tok, "sigmoid", renormalise=True,
            routed_scaling=config.moe_routed_scaling_factor,
        ),
        activation=activation(config.hidden_act),
        selection_bias=True,
        shared_inner=config.shared_expert_intermediate_size,
        router_cap=config.moe_router_logit_softcapping or None,
    )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="laguna", eps=config.rms_norm_eps)
    ropes = layer_ropes(config, context, ROPE)
    mlp, routed = gated_mlp(config, config.hidden_act), experts(config)
    layers = zip(config.heads(), config.windows(), config.routed(), strict=True)
    x = decoder.embed()
    for n, (heads, window, sparse) in enumerate(layers):
        rope = ropes[LOCAL if window else GLOBAL]
        x = decoder.mixer(x, n, mixer(config, heads, window, rope), table=TENSORS)
        if sparse:
            x = decoder.feed_forward(x, n, routed, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
