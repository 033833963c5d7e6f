"""Step 3.5 and 3.7, text: heads by kind of layer, a gate on every head, experts bounded late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import Attention, AttentionGate, GatedMLP, Gating, MoE, QKNorm
from cortiq.models import step_keys
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.gguf_keys import BY_SIGMOID
from cortiq.models.granitemoehybrid import ROLES
from cortiq.models.layer_kinds import (
    GLOBAL,
    LOCAL,
    by_layer,
    each_layer,
    layer_ropes,
    single_count,
    sparse_layers,
    windows,
)
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, Decoder, attention, norm_offset
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router

ARCHITECTURES = ("step3p5", "step35")
GGUF = ("step35",)
KEYS = Keys(
    aliases={
        "moe_num_experts": "n_routed_experts", "moe_top_k": "num_experts_per_tok",
        "num_attention_groups": "num_key_value_heads", "num_local_experts": "n_routed_experts",
        "share_expert_dims": "share_expert_dim",
    },
    same_as={"num_mtp_layers": "num_nextn_predict_layers"},
    harmless=frozenset({
        "max_seq_len", "mtp_layer_types", "mtp_mlp_layer_types", "need_fp32_gate",
    }),
    only={
        "hidden_act": "silu", "moe_every_n_layer": 1, "moe_router_activation": "sigmoid",
        "norm_expert_weight": True, "use_head_wise_attn_gate": True, "use_mfa": False,
        "use_moe": True, "use_moe_router_bias": True, "use_qk_norm": True,
        "yarn_only_types": [GLOBAL], "zero_centered": True,
    },
    gguf={
        "expert_count": "n_routed_experts", "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "share_expert_dim",
        "expert_weights_scale": "moe_router_scaling_factor",
        "leading_dense_block_count": "dense", "moe_every_n_layers": "every",
        "nextn_predict_layers": "num_nextn_predict_layers",
        "rope.freq_base_swa": "swa_rope_theta",
        "swiglu_clamp_exp": "swiglu_limits", "swiglu_clamp_shexp": "swiglu_limits_shared",
    },
    gguf_absent={"expert_weights_scale": 1.0},
    gguf_only={**BY_SIGMOID, "expert_weights_norm": True},
    gguf_tensors={"sparse": "blk.*.ffn_gate_inp.weight"},
)  # fmt: skip
NAMES = Names(
    gguf={
        "self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp",
        "moe.router_bias": "exp_probs_b.bias",
        **{f"moe.{role}_proj": f"ffn_{role}_exps" for role in ROLES},
        **{f"share_expert.{role}_proj": f"ffn_{role}_shexp" for role in ROLES},
    }
)  # fmt: skip
TENSORS: Mapping[str, str] = {**ATTENTION, "gate": "g_proj.weight"}
EXPERTS: Mapping[str, str] = {
    "router": "moe.gate.weight", "bias": "moe.router_bias",
    **{role: f"moe.{MLP[role]}" for role in ("gate", "up", "down")},
    **{f"shared_{role}": f"share_expert.{tensor}" for role, tensor in MLP.items()},
}  # fmt: skip
ROPE: Mapping[str, Mapping[str, Any]] = {k: {"rope_theta": 1e4} for k in (GLOBAL, LOCAL)}
Limits = tuple[float | None, ...] | None
values = step_keys.values


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Step3p7TextConfig`; bounds of 0 are none.

    Attributes
    ----------
    swiglu_limits, swiglu_limits_shared : by layer, of experts, and of shared ones and MLPs.
    per_layer_config : heads of layers with a window, once more.
    """

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 128000
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    mlp_layer_types: tuple[str, ...] | None = None
    num_sliding_attention_heads: int | None = None
    per_layer_config: Mapping[str, Any] | None = None
    query_pre_attn_scalar: float | None = None
    n_routed_experts: int = 288
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 1280
    share_expert_dim: int = 1280
    moe_router_scaling_factor: float = 1.0
    swiglu_limits: Limits = None
    swiglu_limits_shared: Limits = None
    num_nextn_predict_layers: Amount = Amount(0)

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer: none by default."""
        layers = self.num_hidden_layers
        return windows(self.layer_types or (GLOBAL,) * layers, layers, self.sliding_window)

    def heads(self) -> tuple[int, ...]:
        """Return the number of query heads of every layer."""
        own = self.num_sliding_attention_heads or self.num_attention_heads
        heads = tuple(own if window else self.num_attention_heads for window in self.windows())
        given = {str(n): {"num_attention_heads": count} for n, count in enumerate(heads)}
        usual = {"num_attention_heads": self.num_attention_heads}
        said = dict.fromkeys(given, usual) | dict(self.per_layer_config or {})
        if self.per_layer_config is not None and said != given:
            message = "per_layer_config has other heads than num_sliding_attention_heads"
            raise UnsupportedError(message, where="config")
        return heads

    def routed(self) -> tuple[bool, ...]:
        """Return whether each layer has experts: all but the first three by default."""
        layers = self.num_hidden_layers
        usual = tuple("sparse" if n >= 3 else "dense" for n in range(layers))
        return sparse_layers(self.mlp_layer_types or usual, layers)

    def gatings(self) -> list[tuple[Gating, Gating]]:
        """Return how experts of every layer join their rows, and how MLPs do."""
        names = ("swiglu_limits", "swiglu_limits_shared")
        found = [each_layer(getattr(self, n), self.num_hidden_layers, n) for n in names]
        how = [[Gating(limit=bound or None, late=bool(bound)) for bound in row] for row in found]
        return list(zip(*how, strict=True))


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files, which list heads by layer.

    Attributes
    ----------
    sparse : whether each layer has experts.
    dense, every : say so once more.
    """

    num_attention_heads: int | tuple[int, ...]  # type: ignore[assignment]
    num_key_value_heads: int | tuple[int, ...] | None = None  # type: ignore[assignment]
    swa_rope_theta: float = 10000.0
    sparse: tuple[bool, ...] = ()
    dense: Amount = Amount(0)
    every: Amount = Amount(1)

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form; whole attention turns half a head."""
        count = self.num_hidden_layers
        local = [window is not None for window in self.windows()]
        heads = by_layer(self.num_attention_heads, count, "head_count")
        keys = by_layer(self.num_key_value_heads, count, "head_count_kv")
        pairs = list(zip(heads, local, strict=True))
        whole, own = (single_count((h for h, w in pairs if w == kind), "head_count")
                      for kind in (False, True))  # fmt: skip
        rope, turned = dict(self.rope_parameters), int(self.head_width / 2)
        rope |= {"partial_rotary_factor": turned / self.head_width}
        if "factors" in rope:
            rope["factors"] = rope["factors"][: turned // 2]
        other = {"rope_type": "default", "rope_theta": self.swa_rope_theta}
        return convert_config(
            Config, self, where, num_attention_heads=whole or own,
            num_sliding_attention_heads=own, rope_parameters={GLOBAL: rope, LOCAL: other},
            num_key_value_heads=single_count(keys, "head_count_kv"),
            mlp_layer_types=tuple("sparse" if sparse else "dense" for sparse in self.sparse),
            swiglu_limits=by_layer(self.swiglu_limits, count, "swiglu"),
            swiglu_limits_shared=by_layer(self.swiglu_limits_shared, count, "swiglu"),
        )  # fmt: skip


def mixer(config: Config, heads: int, window: int | None, rope: RopeTable) -> Attention:
    """Return a layer's attention."""
    return attention(
        replace(config, num_attention_heads=heads), rope=rope, window=window,
        qk_norm=QKNorm(config.rms_norm_eps, norm_offset(config)), biased=config.attention_bias,
        output_biased=config.attention_bias, gate=AttentionGate("sigmoid", per_head=True),
        scale=(config.query_pre_attn_scalar or config.head_width) ** -0.5,
    )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, eps = config.hidden_size, config.rms_norm_eps
    decoder = Decoder(config, context, family="step3p7", eps=eps, offset=norm_offset(config))
    ropes = layer_ropes(config, context, ROPE)
    router = Router(
        config.num_experts_per_tok, "sigmoid", renormalise=True,
        routed_scaling=config.moe_router_scaling_factor,
    )  # fmt: skip
    layers = zip(config.heads(), config.windows(), config.routed(), config.gatings(), strict=True)
    x = decoder.embed()
    for n, (heads, window, sparse, (own, shared)) in enumerate(layers):
        rope = ropes[LOCAL if window else GLOBAL]
        x = decoder.mixer(x, n, mixer(config, heads, window, rope), table=TENSORS)
        if sparse:
            experts = MoE(
                width, config.moe_intermediate_size, config.n_routed_experts, router, own,
                selection_bias=True, shared_inner=config.share_expert_dim,
                shared_activation=shared, shared_biased=config.mlp_bias,
            )  # fmt: skip
            x = decoder.feed_forward(x, n, experts, tensors="", table=EXPERTS)
        else:
            mlp = GatedMLP(width, config.intermediate_size, shared, config.mlp_bias)
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
