"""Ling 3: Kimi delta attention, latent attention with a gate a head, experts in groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import KDA, LatentAttention, MoE
from cortiq.models.bailing_moe_v2 import EXPERTS
from cortiq.models.config import Amount, Keys, check_derived
from cortiq.models.layer_kinds import GLOBAL, layer_list, sparse_layers
from cortiq.models.mla import LatentConfig, latent_attention, names_of
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, gated_mlp, grouped_router
from cortiq.models.qwen3_next import LINEAR
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("bailing_hybrid",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={
        "model_max_length": "max_position_embeddings", "norm_topk_prob": "moe_renormalize",
        "n_group": "num_expert_group", "num_local_experts": "num_experts",
        "num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    },
    harmless=frozenset({"mtp_loss_scaling_factor"}),
)  # fmt: skip
NAMES = Names(
    folder={"model.embed_tokens.": "model.word_embeddings."},
    fused=(
        FusedTensor(
            "attention.kv_b_proj", ("attention.k_b", "attention.v_b"), swapped=("attention.k_b",)
        ),
    ),
    joined={"attention.conv1d": tuple(f"attention.{part}_conv1d" for part in "qkv")},
)
DELTA: Mapping[str, str] = {
    **{role: f"{role}_proj.weight" for role in ("q", "k", "v", "f", "g", "b")},
    "o": "dense.weight", "conv": "conv1d.weight", "A_log": "A_log", "dt_bias": "dt_bias",
    "norm": "o_norm.weight",
}  # fmt: skip
"""Roles of `KDA` to tensor names."""


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig):
    """Fields of `BailingHybridConfig`; `linear_*` repeat what older keys say.

    Attributes
    ----------
    layer_group_size : the last of so many layers has latent attention, unless a list says so.
    """

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 262144
    q_lora_rank: int | None = None
    layer_types: tuple[str, ...] | None = None
    layer_group_size: int = 6
    linear_head_dim: int | None = None
    linear_num_heads: int | None = None
    linear_conv_kernel_dim: int | None = None
    short_conv_kernel_size: int = 4
    kda_safe_gate: bool = True
    kda_lower_bound: float = -5.0
    mlp_layer_types: tuple[str, ...] | None = None
    first_k_dense_replace: Amount = Amount(2)
    num_experts: int = 512
    num_experts_per_token: int = 8
    moe_intermediate_size: int = 768
    num_shared_experts: int = 1
    num_expert_group: int = 8
    topk_group: int = 4
    moe_renormalize: bool = True
    routed_scaling_factor: float = 2.5
    num_nextn_predict_layers: Amount = Amount(1)
    default_theta: ClassVar[float] = 6000000.0

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer."""
        count, size = self.num_hidden_layers, self.layer_group_size
        turns = tuple(LINEAR if (n + 1) % size else GLOBAL for n in range(count))
        return layer_list(self.layer_types or turns, count, (LINEAR, GLOBAL))

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts."""
        if self.mlp_layer_types is not None:
            return sparse_layers(self.mlp_layer_types, self.num_hidden_layers)
        return tuple(n >= self.first_k_dense_replace for n in range(self.num_hidden_layers))

    def delta(self) -> KDA:
        """Return the mixer of most layers, whose decays have a bound if it is safe."""
        heads, kernel = self.num_attention_heads, self.short_conv_kernel_size
        check_derived(
            "config", linear_num_heads=(self.linear_num_heads, heads),
            linear_conv_kernel_dim=(self.linear_conv_kernel_dim, kernel),
        )  # fmt: skip
        dim = self.linear_head_dim or self.head_dim or 128
        return KDA(
            width=self.hidden_size, heads=heads, key_dim=dim, value_dim=dim, kernel=kernel,
            eps=self.rms_norm_eps, decay_rank=0, activation=activation(self.hidden_act),
            decay_bound=self.kda_lower_bound if self.kda_safe_gate else None,
        )  # fmt: skip

    def latent(self, context: int) -> LatentAttention:
        """Return the attention of the other layers."""
        return replace(latent_attention(self, rope_table(self, context)), gated=True)

    def experts(self) -> MoE:
        """Return the experts, of which one or some are shared."""
        router = grouped_router(
            self.num_experts_per_token, self.moe_renormalize, self.routed_scaling_factor,
            self.num_expert_group, self.topk_group,
        )  # fmt: skip
        return MoE(
            width=self.hidden_size, inner=self.moe_intermediate_size, experts=self.num_experts,
            router=router, activation=activation(self.hidden_act), selection_bias=True,
            shared_inner=self.moe_intermediate_size * self.num_shared_experts,
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="bailing_hybrid", eps=config.rms_norm_eps)
    delta, attend, experts = config.delta(), config.latent(context), config.experts()
    names = {**names_of(config), "o": "dense.weight", "o_bias": "dense.bias"}
    names["gate"] = "g_proj.weight"
    mlp, x = gated_mlp(config, config.hidden_act), decoder.embed()
    for n, (kind, sparse) in enumerate(zip(config.kinds(), config.sparse(), strict=True)):
        if kind == LINEAR:
            x = decoder.mixer(x, n, delta, name="delta", tensors="attention", table=DELTA)
        else:
            x = decoder.mixer(x, n, attend, tensors="attention", table=names)
        if sparse:
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
