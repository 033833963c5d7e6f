"""Kimi Linear: Kimi delta attention, latent attention that rotates nothing, DeepSeek's experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import GatedMLP, Gating, MoE
from cortiq.models.config import Amount, Keys, check_derived, convert_config
from cortiq.models.kimi_delta import DELTA, INNER, JOINED, DeltaConfig
from cortiq.models.layer_kinds import GLOBAL, by_layer, layer_list, sparse_layers
from cortiq.models.mixtral import EXPERTS
from cortiq.models.mla import JOINT, LATENT_GGUF, LatentConfig, latent_attention, names_of
from cortiq.models.names import Names
from cortiq.models.parts import MLP, MOE, Decoder, activation
from cortiq.models.qwen3_next import LINEAR
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.route import Router

ARCHITECTURES = ("kimi_linear", "kimi-linear")
GGUF = ("kimi-linear",)
KEYS = Keys(
    aliases={"model_max_length": "max_position_embeddings"},
    only={
        "mla_use_nope": True, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid",
        "num_nextn_predict_layers": 0, "use_grouped_topk": True,
    },
    gguf={
        "attention.key_length": "slot_width", "attention.key_length_mla": "qk_head_dim",
        "attention.kv_lora_rank": "kv_lora_rank", "attention.q_lora_rank": "q_lora_rank",
        "attention.value_length": "value_length", "attention.value_length_mla": "v_head_dim",
        "expert_count": "num_experts", "expert_used_count": "num_experts_per_token",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_group_count": "num_expert_group", "expert_group_used_count": "topk_group",
        "expert_shared_count": "num_shared_experts", "expert_weights_norm": "moe_renormalize",
        "expert_weights_scale": "routed_scaling_factor", "kda.head_dim": "linear_head_dim",
        "leading_dense_block_count": "first_k_dense_replace",
        "rope.dimension_count": "qk_rope_head_dim", "ssm.conv_kernel": "linear_conv_kernel_dim",
    },
    gguf_absent={"expert_weights_scale": 1.0},
    gguf_only={"expert_gating_func": 2},
)  # fmt: skip
SPARSE = "block_sparse_moe"
NAMES = Names(
    # transformers writes the matrices of dense layers under the name of experts
    fused=(
        JOINT,
        *(FusedTensor(f"{SPARSE}.{m}_proj", (f"mlp.{m}_proj",)) for m in ("gate", "up", "down")),
    ),
    joined=JOINED,
    gguf={
        **LATENT_GGUF,
        **{f"self_attn.{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
        **{f"self_attn.{part}_proj": f"ssm_{part}" for part in ("f_a", "f_b", "g_a", "g_b")},
        "self_attn.b_proj": "ssm_beta", "self_attn.A": "ssm_a",
        "self_attn.dt_bias": "ssm_dt.bias", "self_attn.o_norm": "ssm_norm",
        f"{SPARSE}.gate": "ffn_gate_inp",
        f"{SPARSE}.gate.e_score_correction_bias": "exp_probs_b.bias",
        **{f"{SPARSE}.experts.{w}": f"ffn_{role}_exps"
           for w, role in (("w1", "gate"), ("w2", "down"), ("w3", "up"))},
        **{f"{SPARSE}.shared_experts.{role}_proj": f"ffn_{role}_shexp"
           for role in ("gate", "up", "down")},
    },
)  # fmt: skip
LISTS: Mapping[str, str] = {"full_attn_layers": GLOBAL, "kda_layers": LINEAR}
"""Its lists of layers, which count from 1."""
FLOOR = 1e-20
"""Added to the sum that weights are divided by."""


@dataclass(frozen=True, kw_only=True)
class Config(DeltaConfig, LatentConfig):
    """Fields of `KimiLinearConfig` as files name them; `linear_attn_config` is the older form."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 1048576
    q_lora_rank: int | None = None
    layer_types: tuple[str, ...] | None = None
    mlp_layer_types: tuple[str, ...] | None = None
    first_k_dense_replace: Amount | None = None
    num_experts: int = 256
    num_experts_per_token: int = 8
    moe_intermediate_size: int = 1024
    num_shared_experts: int = 1
    num_expert_group: int = 1
    topk_group: int = 1
    moe_renormalize: bool = True
    routed_scaling_factor: float = 2.446
    more_inner: ClassVar[frozenset[str]] = frozenset()

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer; without a list every fourth has attention.

        Raises
        ------
        FormatError : lists that disagree or fit no layers.
        UnsupportedError : keys of `linear_attn_config` that are not known.
        """
        count, inner = self.num_hidden_layers, self.linear_attn_config or {}
        if unknown := sorted(set(inner) - set(INNER) - set(LISTS) - self.more_inner):
            message = f"has keys that cortiq does not support: {', '.join(unknown)}"
            raise UnsupportedError(message, where="linear_attn_config")
        turns = tuple(GLOBAL if n and n % 4 == 0 else LINEAR for n in range(count))
        old = self._inner_kinds(inner) if set(inner) & set(LISTS) else None
        if None not in (old, self.layer_types) and old != self.layer_types:
            raise FormatError("contradicts layer_types", where="linear_attn_config")
        return layer_list(self.layer_types or old or turns, count, (LINEAR, GLOBAL))

    def _inner_kinds(self, inner: Mapping[str, Any]) -> tuple[str, ...]:
        lists = {key: inner.get(key) for key in LISTS}
        pairs = [(n, LISTS[key]) for key, v in lists.items() if isinstance(v, list) for n in v]
        whole = all(type(n) is int for n, _ in pairs)
        if not whole or sorted(n for n, _ in pairs) != list(range(1, self.num_hidden_layers + 1)):
            message = f"{' and '.join(LISTS)} do not name every layer once, from 1"
            raise FormatError(message, where="linear_attn_config")
        return tuple(kind for _, kind in sorted(pairs))

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts: all but the first by default.

        Raises
        ------
        FormatError : the list fits no layers, or the number of dense layers contradicts it.
        """
        count, dense = self.num_hidden_layers, self.first_k_dense_replace
        derived = tuple(n >= (1 if dense is None else dense) for n in range(count))
        listed = self.mlp_layer_types
        found = derived if listed is None else sparse_layers(listed, count)
        if dense is not None and found != derived:
            message = f"mlp_layer_types contradicts first_k_dense_replace, {dense}"
            raise FormatError(message, where="config")
        return found

    @property
    def act(self) -> str | Gating:
        """Function that joins gate and row of every MLP."""
        return activation(self.hidden_act)

    def experts(self) -> MoE:
        """Return the experts: grouped, chosen with a bias, and a shared one."""
        router = Router(
            self.num_experts_per_token, "sigmoid", renormalise=self.moe_renormalize,
            denominator_floor=FLOOR, routed_scaling=self.routed_scaling_factor,
            groups=self.num_expert_group, kept_groups=self.topk_group, group_score="top2",
        )  # fmt: skip
        return MoE(
            width=self.hidden_size, inner=self.moe_intermediate_size, experts=self.num_experts,
            router=router, activation=self.act, selection_bias=True,
            shared_inner=self.moe_intermediate_size * self.num_shared_experts,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(LatentConfig):
    """Fields of GGUF files; layers with KV heads have latent attention.

    Attributes
    ----------
    slot_width, value_length : of the rows that are kept, which follow from the other widths.
    """

    num_key_value_heads: int | tuple[int, ...] | None = None  # type: ignore[assignment]
    rms_norm_eps: float = 1e-5
    q_lora_rank: int | None = None
    qk_head_dim: int = 192  # type: ignore[assignment]
    slot_width: int | None = None
    value_length: int | None = None
    linear_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    first_k_dense_replace: Amount = Amount(1)
    num_experts: int = 256
    num_experts_per_token: int = 8
    moe_intermediate_size: int = 1024
    num_shared_experts: int = 1
    num_expert_group: int = 1
    topk_group: int = 1
    moe_renormalize: bool = True
    routed_scaling_factor: float = 2.446
    config_type: ClassVar[type[Config]] = Config

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        heads = by_layer(self.num_key_value_heads, self.num_hidden_layers, "head_count_kv")
        if self.qk_head_dim <= self.qk_rope_head_dim:
            message = f"keys of {self.qk_head_dim}, of which {self.qk_rope_head_dim} turn"
            raise FormatError(message, where=where)
        check_derived(
            where,
            slot_width=(self.slot_width, self.kv_lora_rank + self.qk_rope_head_dim),
            value_length=(self.value_length, self.kv_lora_rank),
        )
        return convert_config(
            self.config_type, self, where, num_key_value_heads=self.num_attention_heads,
            qk_nope_head_dim=self.qk_head_dim - self.qk_rope_head_dim,
            layer_types=tuple(GLOBAL if count else LINEAR for count in heads),
            linear_num_heads=self.num_attention_heads,
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk; nothing is rotated."""
    decoder = Decoder(config, context, family="kimi_linear", eps=config.rms_norm_eps)
    attend, names, delta = latent_attention(config, None), names_of(config), config.delta()
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.act)
    experts = config.experts()
    x = decoder.embed()
    for n, (kind, sparse) in enumerate(zip(config.kinds(), config.sparse(), strict=True)):
        if kind == LINEAR:
            x = decoder.mixer(x, n, delta, name="delta", table=DELTA)
        else:
            x = decoder.mixer(x, n, attend, table=names)
        if sparse:
            x = decoder.feed_forward(x, n, experts, tensors=SPARSE, table={**MOE, **EXPERTS})
        else:
            x = decoder.feed_forward(x, n, mlp, table=MLP)
    return decoder.finish(x)
