"""MiMo V2 Flash: narrow values; windowed layers with sinks and twice the KV heads; experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import Attention, MoE
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.layer_kinds import (
    GLOBAL,
    LOCAL,
    by_layer,
    layer_ropes,
    single_count,
    sparse_layers,
    windows,
)
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MOE, Decoder, activation, attention, gated_mlp
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router

ARCHITECTURES = ("mimo_v2_flash", "mimo2")
GGUF = ("mimo2",)
KEYS = Keys(
    gguf={
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "attention.value_length": "v_head_dim",
        "attention.value_scale": "attention_value_scale",
        "expert_count": "n_routed_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": "routed_scaling_factor",
        "nextn_predict_layers": "num_nextn_predict_layers",
        "rope.dimension_count": "rope_dimension_count",
        "rope.freq_base": "rope_theta",
        "rope.freq_base_swa": "swa_rope_theta",
    },
    gguf_only={"expert_gating_func": 2},
)
QKV = FusedTensor("self_attn.qkv_proj", tuple(f"self_attn.{part}_proj" for part in "qkv"))
NAMES = Names(
    gguf={"self_attn.attention_sink_bias": "attn_sinks.weight", "self_attn.qkv_proj": "attn_qkv"},
    fused=(QKV,),
)
TENSORS: Mapping[str, str] = {**ATTENTION, "sinks": "attention_sink_bias"}
FLOOR = 1e-20
"""Added to the sum that weights are divided by."""
TURNED = 0.334
"""Share of a head that is rotated where the file does not say."""
ROPE: Mapping[str, Mapping[str, Any]] = {
    GLOBAL: {"rope_theta": 5000000.0, "partial_rotary_factor": TURNED},
    LOCAL: {"rope_theta": 10000.0, "partial_rotary_factor": TURNED},
}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MiMoV2FlashConfig`; `num_key_value_heads` is that of layers without a window.

    Attributes
    ----------
    num_nextn_predict_layers : of a GGUF file's layers, the last ones, which draft.
    """

    num_key_value_heads: int | None = 4
    head_dim: int | None = 192
    v_head_dim: int = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False
    attention_value_scale: float | None = 0.707
    sliding_window: int = 129
    layer_types: tuple[str, ...] | None = None
    mlp_layer_types: tuple[str, ...] | None = None
    n_routed_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 2048
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float | None = 1.0
    num_nextn_predict_layers: Amount = Amount(0)
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "num_nextn_predict_layers"})

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer; by default none for the first and every sixth."""
        layers, window = range(self.num_hidden_layers), self.sliding_window
        if self.layer_types is None:
            return tuple(window if n and (n + 1) % 6 else None for n in layers)
        return windows(self.layer_types, len(layers), window)

    def routed(self) -> tuple[bool, ...]:
        """Return whether each layer has experts: all but the first by default."""
        layers = self.num_hidden_layers
        return sparse_layers(self.mlp_layer_types or ("dense", *("sparse",) * (layers - 1)), layers)


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(BaseConfig):
    """Fields of GGUF files: windows and KV heads by layer; experts in all layers but the first."""

    num_key_value_heads: int | tuple[int, ...] | None = None  # type: ignore[assignment]
    head_dim: int | None = 192
    v_head_dim: int = 128
    rms_norm_eps: float = 1e-5
    attention_value_scale: float | None = None
    sliding_window: int = 128
    sliding_window_pattern: tuple[int, ...] | tuple[bool, ...] = ()
    n_routed_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 2048
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    num_nextn_predict_layers: Amount = Amount(0)
    rope_dimension_count: int = 64
    rope_theta: float = 10000.0
    swa_rope_theta: float = 10000.0

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        count = self.num_hidden_layers
        local = by_layer(self.sliding_window_pattern, count, "sliding_window_pattern")
        heads = by_layer(self.num_key_value_heads, count, "head_count_kv")
        whole = single_count(
            (h for h, w in zip(heads, local, strict=True) if not w), "head_count_kv"
        )
        own = single_count((h for h, w in zip(heads, local, strict=True) if w), "head_count_kv")
        whole = whole or (own or 0) // 2
        if own not in (None, 2 * whole):
            message = f"has {own} KV heads in layers with a window, {whole} in others"
            raise FormatError(message, where=where)
        if self.rope_parameters["rope_type"] != "default":
            message = f"{self.rope_parameters['rope_type']} scaling of this family"
            raise UnsupportedError(message, where=where)
        turned = {"partial_rotary_factor": self.rope_dimension_count / self.head_width}
        ropes = {GLOBAL: self.rope_theta, LOCAL: self.swa_rope_theta}
        return convert_config(
            Config, self, where, num_key_value_heads=whole,
            layer_types=tuple(LOCAL if w else GLOBAL for w in local),
            rope_parameters={k: {"rope_type": "default", "rope_theta": theta, **turned}
                             for k, theta in ropes.items()},
        )  # fmt: skip


def mixer(config: Config, window: int | None, rope: RopeTable) -> Attention:
    """Return a layer's attention."""
    scale = config.attention_value_scale
    heads = replace(config, num_key_value_heads=config.kv_heads * (2 if window else 1))
    return attention(
        heads, value_dim=config.v_head_dim, value_scale=1.0 if scale is None else scale, rope=rope,
        window=window, sinks=window is not None, biased=config.attention_bias,
    )  # fmt: skip


def experts(config: Config) -> MoE:
    """Return the experts of a sparse layer."""
    router = Router(
        config.num_experts_per_tok,
        "sigmoid",
        renormalise=config.norm_topk_prob,
        denominator_floor=FLOOR,
        routed_scaling=config.routed_scaling_factor or 1.0,
        groups=config.n_group,
        kept_groups=config.topk_group,
        group_score="top2",
    )
    return MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.n_routed_experts,
        router=router,
        activation=activation(config.hidden_act),
        selection_bias=True,
    )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="mimo_v2_flash", eps=config.rms_norm_eps)
    ropes = layer_ropes(config, context, ROPE)
    mlp, routed = gated_mlp(config, config.hidden_act), experts(config)
    x = decoder.embed()
    for n, (window, sparse) in enumerate(zip(config.windows(), config.routed(), strict=True)):
        rope = ropes[LOCAL if window else GLOBAL]
        x = decoder.mixer(x, n, mixer(config, window, rope), table=TENSORS)
        if sparse:
            x = decoder.feed_forward(x, n, routed, table=MOE)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
