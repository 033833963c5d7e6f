"""Ling 2.5 to 3: lightning or Kimi delta attention, latent attention, experts in groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import KDA, LatentAttention, LightningAttention, MoE
from cortiq.models import bailing_hybrid_gguf
from cortiq.models.alibi import lightning_slopes
from cortiq.models.bailing_moe_v2 import EXPERTS
from cortiq.models.config import Amount, BaseConfig, Keys, check_derived
from cortiq.models.gguf_keys import BY_SIGMOID
from cortiq.models.granitemoehybrid import decay_form
from cortiq.models.layer_kinds import GLOBAL, layer_list, sparse_layers
from cortiq.models.mla import LatentConfig, latent_attention, names_of
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, gated_mlp, grouped_router
from cortiq.models.qwen3_next import LINEAR
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.rope import RopeTable

ARCHITECTURES = ("bailing_hybrid", "bailingmoe3")
GGUF = ("bailingmoe3",)
KEYS = Keys(
    aliases={
        "model_max_length": "max_position_embeddings", "norm_topk_prob": "moe_renormalize",
        "n_group": "num_expert_group", "num_local_experts": "num_experts",
        "num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    },
    harmless=frozenset({
        "embedding_dropout", "max_window_layers", "mtp_loss_scaling_factor",
        "num_kv_heads_for_linear_attn", "output_dropout", "router_dtype", "seq_aux",
        "use_sliding_window",
    }),
    only={
        "linear_silu": False, "moe_router_enable_expert_bias": True, "norm_head": False,
        "norm_softmax": False, "rope_interleave": True, "score_function": "sigmoid",
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "use_bias": False,
        "use_qkv_bias": False, "use_rmsnorm": True,
    },
    gguf=bailing_hybrid_gguf.KEYS,
    gguf_absent={"expert_weights_norm": False, "expert_weights_scale": 1.0},
    gguf_only=BY_SIGMOID,
)  # fmt: skip
TENSORS = Names(
    folder={"model.embed_tokens.": "model.word_embeddings."},
    fused=(
        FusedTensor(
            "attention.kv_b_proj", ("attention.k_b", "attention.v_b"), swapped=("attention.k_b",)
        ),
    ),
    joined={"attention.conv1d": tuple(f"attention.{part}_conv1d" for part in "qkv")},
    unread=r".*\.attention\.slope",
    gguf=bailing_hybrid_gguf.NAMES,
)  # fmt: skip
DELTA: Mapping[str, str] = {
    **{role: f"{role}_proj.weight" for role in ("q", "k", "v", "f", "g", "b")},
    "o": "dense.weight", "conv": "conv1d.weight", "A_log": "A_log", "A": "A",
    "dt_bias": "dt_bias", "norm": "o_norm.weight",
}  # fmt: skip
"""Roles of `KDA` to tensor names."""
LIGHTNING: Mapping[str, str] = {
    "qkv": "query_key_value.weight", "q_norm": "query_layernorm.weight",
    "k_norm": "key_layernorm.weight", "norm": "g_norm.weight", "gate": "g_proj.weight",
    "out": "dense.weight",
}  # fmt: skip
"""Roles of `LightningAttention` to tensor names."""
GROUPS = "group_norm_size"
"""Key that only files of Ling 2.5 and 2.6 have, whose linear attention is lightning attention."""
OLDER: Mapping[str, Any] = {
    "first_k_dense_replace": 1, "layer_group_size": 5, "max_position_embeddings": 32768,
    "moe_intermediate_size": 512, "num_experts": 256, "num_nextn_predict_layers": 0,
    "partial_rotary_factor": 0.5, "rope_theta": 600000.0, "routed_scaling_factor": 1.0,
}  # fmt: skip
"""What is meant by keys that those files do not have."""


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a config.json, with those that a file of Ling 2.5 leaves out."""
    return {**(OLDER if GROUPS in given else {}), **given}


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig):
    """Fields of `BailingHybridConfig` and `BailingMoeV2_5Config`; `linear_*` repeat older keys.

    Attributes
    ----------
    layer_group_size : the last of so many layers has latent attention, unless a list says so.
    group_norm_size : groups of the norm of lightning attention; without, layers have KDA.
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
    group_norm_size: int | None = None
    use_qk_norm: bool = True
    rotary_dim: int | None = None
    moe_shared_expert_intermediate_size: int | None = None
    default_theta: ClassVar[float] = 6000000.0

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer; layers of Ling 2.5 after the last whole group have latent
        attention.
        """
        count, size = self.num_hidden_layers, self.layer_group_size
        whole = count // size * size if self.group_norm_size else count
        turns = tuple(LINEAR if (n + 1) % size and n < whole else GLOBAL for n in range(count))
        return layer_list(self.layer_types or turns, count, (LINEAR, GLOBAL))

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts."""
        if self.mlp_layer_types is not None:
            return sparse_layers(self.mlp_layer_types, self.num_hidden_layers)
        return tuple(n >= self.first_k_dense_replace for n in range(self.num_hidden_layers))

    def delta(self) -> KDA:
        """Return the mixer of most layers, whose decays have a bound if it is safe.

        Raises
        ------
        UnsupportedError : queries and keys that are not normed.
        """
        if not self.use_qk_norm:
            raise UnsupportedError("use_qk_norm = False without lightning attention")
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
            decay_form=decay_form(self),
        )  # fmt: skip

    def rope(self, context: int) -> RopeTable:
        """Return the table, of latent attention and of a part of lightning attention's heads.

        Raises
        ------
        FormatError : the two parts differ.
        """
        given = dict(self.rope_parameters)
        check_derived("config", rotary_dim=(self.rotary_dim, self.qk_rope_head_dim))
        if self.group_norm_size:
            turned = int(self.lightning_dim * given.pop("partial_rotary_factor", 1.0))
            check_derived("config", qk_rope_head_dim=(self.qk_rope_head_dim, turned))
        return rope_table(replace(self, rope_parameters=given), context)

    @property
    def lightning_dim(self) -> int:
        """Width of a head of lightning attention."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def lightning(self, layer: int, context: int) -> LightningAttention:
        """Return a layer's linear attention: later layers forget more slowly.

        Raises
        ------
        UnsupportedError : heads whose rates are no geometric series.
        """
        heads, layers = self.num_attention_heads, self.num_hidden_layers
        if heads & (heads - 1) or layers < 2:
            what = f"lightning attention of {heads} heads in {layers} layers"
            hint = "the number of heads is a power of two, and there are more layers"
            raise UnsupportedError(what, where="config", hint=hint)
        slope, ratio = lightning_slopes(heads, layer - 1, layers, spread=0)
        dim, eps = self.lightning_dim, self.rms_norm_eps
        return LightningAttention(
            self.hidden_size, heads, dim, eps, slope, ratio, activation=None, apart=True,
            key_eps=eps if self.use_qk_norm else None, rope=self.rope(context), scale=dim**-0.5,
            norm_groups=self.group_norm_size or 1,
        )  # fmt: skip

    def latent(self, context: int) -> LatentAttention:
        """Return the attention of the other layers, which has a gate beside KDA."""
        gated = not self.group_norm_size
        return replace(latent_attention(self, self.rope(context)), gated=gated)

    def experts(self) -> MoE:
        """Return the experts, of which one or some are shared."""
        shared = self.moe_intermediate_size * self.num_shared_experts
        said = self.moe_shared_expert_intermediate_size
        check_derived("config", moe_shared_expert_intermediate_size=(said, shared))
        router = grouped_router(
            self.num_experts_per_token, self.moe_renormalize, self.routed_scaling_factor,
            self.num_expert_group, self.topk_group,
        )  # fmt: skip
        return MoE(
            width=self.hidden_size, inner=self.moe_intermediate_size, experts=self.num_experts,
            router=router, activation=activation(self.hidden_act), selection_bias=True,
            shared_inner=shared,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(bailing_hybrid_gguf.LingFields):
    """Fields of GGUF files, which are of Ling 3."""

    config_type: ClassVar[type[Any]] = Config


def NAMES(config: BaseConfig) -> Names:
    """Return tensor names: GGUF files call the gate of latent attention otherwise than KDA's."""
    assert isinstance(config, Config)
    if config.source != "gguf":
        return TENSORS
    gates = bailing_hybrid_gguf.gates(n for n, kind in enumerate(config.kinds()) if kind == GLOBAL)
    return replace(TENSORS, gguf={**TENSORS.gguf, **gates})


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="bailing_hybrid", eps=config.rms_norm_eps)
    attend, experts = config.latent(context), config.experts()
    delta = None if config.group_norm_size else config.delta()
    names = {**names_of(config), "o": "dense.weight", "o_bias": "dense.bias"}
    names["gate"] = "g_proj.weight"
    mlp, x = gated_mlp(config, config.hidden_act), decoder.embed()
    for n, (kind, sparse) in enumerate(zip(config.kinds(), config.sparse(), strict=True)):
        if kind == LINEAR and delta:
            x = decoder.mixer(x, n, delta, name="delta", tensors="attention", table=DELTA)
        elif kind == LINEAR:
            x = decoder.mixer(
                x, n, config.lightning(n, context), tensors="attention", table=LIGHTNING,
                others=(decoder.position,),
            )  # fmt: skip
        else:
            x = decoder.mixer(x, n, attend, tensors="attention", table=names)
        if sparse:
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
