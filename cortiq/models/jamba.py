"""Jamba: state spaces of the first kind, attention that rotates nothing, experts in some layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import Mamba1, MoE
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.granitemoehybrid import ROLES, decay_form
from cortiq.models.layer_kinds import by_layer, single_count
from cortiq.models.mamba import MIXER, MIXER_GGUF, rank_of
from cortiq.models.names import Names
from cortiq.models.parts import MLP, Decoder, activation, attention, gated_mlp
from cortiq.numerics.route import Router

ARCHITECTURES = ("jamba",)
KEYS = Keys(
    harmless=frozenset({
        "calc_logits_for_entire_prompt", "num_logits_to_keep", "use_associative_scan",
        "use_mamba_kernels", "use_mambapy",
    }),
    only={"mamba_inner_layernorms": True},
    gguf={
        "expert_count": "num_experts", "ssm.conv_kernel": "mamba_d_conv",
        "ssm.inner_size": "inner_size", "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": "mamba_dt_rank",
    },
    gguf_tensors={
        "attending": "blk.*.attn_q.weight", "sparse": "blk.*.ffn_gate_inp.weight",
        "mamba_conv_bias": "blk.*.ssm_conv1d.bias", "mamba_proj_bias": "blk.*.ssm_in.bias",
    },
)  # fmt: skip
INNER = "feed_forward"
NAMES = Names(
    folder={"model.norm.": "model.final_layernorm."},
    gguf={
        **{f"mamba.{name}": own for name, own in MIXER_GGUF.items()},
        **{f"{INNER}.{role}_proj": f"ffn_{role}" for role in ROLES},
        **{f"{INNER}.experts.{role}_proj": f"ffn_{role}_exps" for role in ROLES},
        f"{INNER}.router": "ffn_gate_inp", "pre_ff_layernorm": "ffn_norm",
    },
)  # fmt: skip
EXPERTS: Mapping[str, str] = {
    "router": "router.weight", **{role: f"experts.{tensor}" for role, tensor in MLP.items()},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `JambaConfig`.

    Attributes
    ----------
    attending, sparse : whether each layer has attention, and experts, as GGUF files say.
    """

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    num_experts: int = 16
    num_experts_per_tok: int = 2
    expert_layer_period: int = 2
    expert_layer_offset: Amount = Amount(1)
    attn_layer_period: int = 8
    attn_layer_offset: Amount = Amount(4)
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_dt_rank: int | str = "auto"
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    attending: tuple[bool, ...] | None = None
    sparse: tuple[bool, ...] | None = None
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "attending", "sparse"})

    def attends(self, layer: int) -> bool:
        """Return whether a layer has attention."""
        if self.attending is not None:
            return self.attending[layer]
        return layer % self.attn_layer_period == self.attn_layer_offset

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        if self.sparse is not None:
            return self.sparse[layer]
        turn = layer % self.expert_layer_period == self.expert_layer_offset
        return self.num_experts > 1 and turn


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files."""

    num_key_value_heads: int | tuple[int, ...] | None = None  # type: ignore[assignment]
    inner_size: int

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        heads = by_layer(self.num_key_value_heads, self.num_hidden_layers, "head_count_kv")
        return convert_config(
            Config, self, where, mamba_expand=self.inner_size // self.hidden_size,
            num_key_value_heads=single_count(heads, "head_count_kv"),
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, act = config.hidden_size, activation(config.hidden_act)
    decoder = Decoder(config, context, family="jamba", eps=config.rms_norm_eps)
    attend, mlp = attention(config), gated_mlp(config, config.hidden_act)
    mamba = Mamba1(
        width=width, inner=config.mamba_expand * width, state_dim=config.mamba_d_state,
        rank=rank_of(config.mamba_dt_rank, width), kernel=config.mamba_d_conv, activation=act,
        biased=config.mamba_proj_bias, conv_biased=config.mamba_conv_bias,
        inner_norm=config.rms_norm_eps, decay_form=decay_form(config),
    )  # fmt: skip
    experts = MoE(
        width=width, inner=config.intermediate_size, experts=config.num_experts,
        router=Router(min(config.num_experts_per_tok, config.num_experts)), activation=act,
    )  # fmt: skip
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        if config.attends(n):
            x = decoder.mixer(x, n, attend)
        else:
            x = decoder.mixer(x, n, mamba, name="mamba", tensors="mamba", table=MIXER)
        if config.is_sparse(n):
            x = decoder.feed_forward(
                x, n, experts, tensors=INNER, table=EXPERTS, before="pre_ff_layernorm"
            )
        else:
            x = decoder.feed_forward(x, n, mlp, tensors=INNER, before="pre_ff_layernorm")
    return decoder.finish(x)
