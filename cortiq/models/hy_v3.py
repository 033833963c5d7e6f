"""HunYuan 3: query and key heads normed before RoPE; experts by sigmoid, and a shared MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import sparse_layers
from cortiq.models.names import Names
from cortiq.models.parts import (
    MLP,
    MOE,
    Decoder,
    activation,
    attention,
    gated_mlp,
    grouped_router,
)
from cortiq.models.rope import rope_table

ARCHITECTURES = ("hy_v3",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={"num_local_experts": "num_experts"}, harmless=frozenset({"enable_moe_fp32_combine"})
)
NAMES = Names()
EXPERTS: Mapping[str, str] = {
    **MOE,
    "router": "router.gate.weight",
    "bias": "expert_bias",
    **{f"shared_{role}": f"shared_mlp.{tensor}" for role, tensor in MLP.items()},
}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `HYV3Config`."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    num_experts: int = 192
    num_experts_per_tok: int = 8
    num_shared_experts: int = 1
    moe_intermediate_size: int = 1536
    router_scaling_factor: float = 2.826
    mlp_layer_types: tuple[str, ...] | None = None
    default_theta: ClassVar[float] = 11158840.0

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts: all but the first by default."""
        layers = self.num_hidden_layers
        return sparse_layers(self.mlp_layer_types or ("dense", *("sparse",) * (layers - 1)), layers)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="hy_v3", eps=config.rms_norm_eps)
    mixer = attention(
        config, rope=rope_table(config, context), qk_norm=QKNorm(config.rms_norm_eps),
        biased=config.attention_bias, output_biased=config.attention_bias,
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    experts = MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=grouped_router(config.num_experts_per_tok, True, config.router_scaling_factor),
        activation=activation(config.hidden_act),
        selection_bias=True,
        shared_inner=config.moe_intermediate_size * config.num_shared_experts,
        shared_biased=config.mlp_bias,
    )
    x = decoder.embed()
    for n, sparse in enumerate(config.sparse()):
        x = decoder.mixer(x, n, mixer)
        if sparse:
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
