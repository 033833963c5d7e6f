"""Mellum 2: Qwen 3 MoE with windows, a rotary base of each kind of layer, and some plain MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.gguf_keys import WINDOWS_BASE
from cortiq.models.layer_kinds import GLOBAL, LOCAL, layer_ropes, sparse_layers, windows
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, attention, gated_mlp
from cortiq.numerics.route import Router

ARCHITECTURES = ("mellum",)
KEYS = Keys(
    aliases={"num_local_experts": "num_experts", "num_nextn_predict_layers": "num_mtp_layers"},
    harmless=frozenset({"mtp_layer_types", "mtp_mlp_layer_types"}),
    gguf={
        "expert_count": "num_experts", "expert_feed_forward_length": "moe_intermediate_size",
        WINDOWS_BASE: "theta_in_windows",
    },
)  # fmt: skip
NAMES = Names()
ROPE: Mapping[str, Mapping[str, Any]] = {
    GLOBAL: {"rope_theta": 500000.0}, LOCAL: {"rope_theta": 10000.0},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MellumConfig`."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    sliding_window: int | None = 1024
    layer_types: tuple[str, ...] | None = None
    mlp_layer_types: tuple[str, ...] | None = None
    num_experts: int = 64
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 896
    norm_topk_prob: bool = True
    num_mtp_layers: Amount | None = None

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer: none by default."""
        layers = self.num_hidden_layers
        return windows(self.layer_types or (GLOBAL,) * layers, layers, self.sliding_window)

    def routed(self) -> tuple[bool, ...]:
        """Return whether each layer has experts: all by default."""
        layers = self.num_hidden_layers
        return sparse_layers(self.mlp_layer_types or ("sparse",) * layers, layers)


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files, whose layers all have experts, with weights divided by their sum.

    Attributes
    ----------
    theta_in_windows : rotary base of layers with a window, which no scaling changes.
    """

    sliding_window: Amount = Amount(0)  # type: ignore[assignment]
    theta_in_windows: float | None = None

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        count, given = self.num_hidden_layers, dict(self.rope_parameters)
        kinds = self.layer_types if self.sliding_window else (GLOBAL,) * count
        own = {
            "rope_type": "default", "rope_theta": self.theta_in_windows or given["rope_theta"],
            "partial_rotary_factor": given["partial_rotary_factor"],
        }  # fmt: skip
        return convert_config(
            Config, self, where, layer_types=kinds, sliding_window=self.sliding_window or None,
            rope_parameters={GLOBAL: given, LOCAL: own},
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="mellum", eps=config.rms_norm_eps)
    ropes, mlp = layer_ropes(config, context, ROPE), gated_mlp(config, config.hidden_act)
    experts = MoE(
        width=config.hidden_size, inner=config.moe_intermediate_size, experts=config.num_experts,
        router=Router(config.num_experts_per_tok, renormalise=config.norm_topk_prob),
        activation=activation(config.hidden_act),
    )  # fmt: skip
    x = decoder.embed()
    for n, (window, sparse) in enumerate(zip(config.windows(), config.routed(), strict=True)):
        mixer = attention(
            config, rope=ropes[LOCAL if window else GLOBAL], window=window,
            qk_norm=QKNorm(config.rms_norm_eps), biased=config.attention_bias,
            output_biased=config.attention_bias,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer)
        if sparse:
            x = decoder.feed_forward(x, n, experts, table=MOE)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
