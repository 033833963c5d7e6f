"""Laguna: heads by layer, a softplus gate on every head, normed queries and keys, experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Attention, AttentionGate, MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.gguf_keys import BY_SIGMOID, WINDOWS_BASE
from cortiq.models.layer_kinds import (
    GLOBAL,
    LOCAL,
    by_layer,
    layer_ropes,
    sparse_layers,
    windows,
)
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, MOE, Decoder, activation, attention, gated_mlp
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router

ARCHITECTURES = ("laguna",)
KEYS = Keys(
    only={"moe_apply_router_weight_on_input": False},
    gguf={
        "expert_count": "num_experts", "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "expert_weights_norm": "renormalised",
        "expert_weights_scale": "moe_routed_scaling_factor",
        "leading_dense_block_count": "dense", "rope.dimension_count_swa": "turned_in_windows",
        WINDOWS_BASE: "theta_in_windows",
    },
    gguf_absent={"expert_weights_norm": False, "expert_weights_scale": 1.0},
    gguf_only={**BY_SIGMOID, "expert_shared_count": 1},
    gguf_rows={"gate_rows": "blk.0.attn_gate.weight"},
)  # fmt: skip
NAMES = Names(
    gguf={
        "self_attn.g_proj": "attn_gate",
        "mlp.experts.e_score_correction_bias": "exp_probs_b.bias",
        **{f"mlp.shared_expert.{role}_proj": f"ffn_{role}_shexp"
           for role in ("gate", "up", "down")},
    }
)  # fmt: skip
PERIOD = 4
"""Every fourth layer, from the first, has no window where a GGUF file does not say."""
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
    """Fields of `LagunaConfig`.

    Attributes
    ----------
    renormalised : whether weights of experts are divided by their sum: unless a GGUF file says no.
    """

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
    renormalised: bool = True
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "renormalised"})

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


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files, which list heads by layer.

    Attributes
    ----------
    gate_rows : one a head, or one an element.
    dense : leading layers without experts.
    turned_in_windows, theta_in_windows : rotary width and base of layers with a window.
    """

    num_attention_heads: int | tuple[int, ...]  # type: ignore[assignment]
    sliding_window: Amount = Amount(0)  # type: ignore[assignment]
    gate_rows: int = 1
    dense: Amount = Amount(0)
    turned_in_windows: int | None = None
    theta_in_windows: float | None = None

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        count, given = self.num_hidden_layers, dict(self.rope_parameters)
        heads = by_layer(self.num_attention_heads, count, "head_count")
        usual = tuple(LOCAL if n % PERIOD else GLOBAL for n in range(count))
        kinds = self.layer_types or usual if self.sliding_window else (GLOBAL,) * count
        share = given["partial_rotary_factor"]
        own = self.turned_in_windows and self.turned_in_windows / self.head_width
        windowed = {
            "rope_type": "default", "partial_rotary_factor": own or share,
            "rope_theta": self.theta_in_windows or given["rope_theta"],
        }  # fmt: skip
        return convert_config(
            Config, self, where, layer_types=kinds, num_attention_heads=heads[0],
            num_attention_heads_per_layer=heads, sliding_window=self.sliding_window or 1,
            gating="per-head" if self.gate_rows == heads[0] else "per-element",
            mlp_layer_types=("dense",) * self.dense + ("sparse",) * (count - self.dense),
            rope_parameters={GLOBAL: given, LOCAL: windowed},
        )  # fmt: skip


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
            config.num_experts_per_tok, "sigmoid", renormalise=config.renormalised,
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
