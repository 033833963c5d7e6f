"""HunYuan 3: query and key heads normed before RoPE; experts by sigmoid, and a shared MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.gguf_keys import BY_SIGMOID
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
KEYS = Keys(
    aliases={"num_local_experts": "num_experts"},
    harmless=frozenset({"enable_moe_fp32_combine"}),
    gguf={
        "expert_count": "num_experts", "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_inner",
        "expert_weights_norm": "renormalised", "expert_weights_scale": "router_scaling_factor",
        "nextn_predict_layers": "num_nextn_predict_layers",
    },
    gguf_absent={"expert_weights_norm": False, "expert_weights_scale": 1.0},
    gguf_only=BY_SIGMOID,
    gguf_tensors={"routed": "blk.*.ffn_gate_inp.weight"},
)  # fmt: skip
NAMES = Names(
    gguf={
        "mlp.router.gate": "ffn_gate_inp", "mlp.expert_bias": "exp_probs_b",
        **{f"mlp.shared_mlp.{role}_proj": f"ffn_{role}_shexp" for role in ("gate", "up", "down")},
    }
)  # fmt: skip
EXPERTS: Mapping[str, str] = {
    **MOE,
    "router": "router.gate.weight",
    "bias": "expert_bias",
    **{f"shared_{role}": f"shared_mlp.{tensor}" for role, tensor in MLP.items()},
}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `HYV3Config`.

    Attributes
    ----------
    routed, shared_inner, renormalised : of GGUF files: whether each layer has experts, the width
        of those that every token passes, and whether weights are divided by their sum.
    """

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
    num_nextn_predict_layers: Amount = Amount(0)
    routed: tuple[bool, ...] = ()
    shared_inner: int | None = None
    renormalised: bool = True
    not_in_json: ClassVar[frozenset[str]] = frozenset(
        {"source", "routed", "shared_inner", "renormalised"}
    )
    default_theta: ClassVar[float] = 11158840.0

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts: all but the first by default."""
        layers = self.num_hidden_layers
        if self.source == "gguf":
            return self.routed
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
        router=grouped_router(
            config.num_experts_per_tok, config.renormalised, config.router_scaling_factor
        ),
        activation=activation(config.hidden_act),
        selection_bias=True,
        shared_inner=config.shared_inner
        or config.moe_intermediate_size * config.num_shared_experts,
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
