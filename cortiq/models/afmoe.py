"""AFMoE (Trinity): gated attention, which turns only in windows; norms around both branches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import AttentionGate, MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.gguf_keys import BY_SIGMOID
from cortiq.models.layer_kinds import windows
from cortiq.models.names import Names
from cortiq.models.parts import (
    ATTENTION,
    MLP,
    MOE,
    Decoder,
    activation,
    attention,
    gated_mlp,
    grouped_router,
)
from cortiq.models.rope import rope_table

ARCHITECTURES = ("afmoe",)
KEYS = Keys(
    harmless=frozenset({"load_balance_coeff", "use_grouped_mm"}),
    only={
        "score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1,
        "num_expert_groups": 1, "num_limited_groups": 1,
    },
    gguf={
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "num_shared_experts",
        "expert_weights_norm": "renormalise",
        "expert_weights_scale": "route_scale",
        "leading_dense_block_count": "num_dense_layers",
    },
    gguf_absent={"expert_weights_norm": False},
    gguf_only=BY_SIGMOID,
)  # fmt: skip
NAMES = Names(
    gguf={
        "post_attention_layernorm": "post_attention_norm",
        "pre_mlp_layernorm": "ffn_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "self_attn.gate_proj": "attn_gate",
        "mlp.router.gate": "ffn_gate_inp",
        "mlp.expert_bias": "exp_probs_b.bias",
    }
)
GATED: Mapping[str, str] = {**ATTENTION, "gate": "gate_proj.weight"}
EXPERTS: Mapping[str, str] = {**MOE, "router": "router.gate.weight", "bias": "expert_bias"}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `AfmoeConfig`. GGUF files always scale embeddings, and have no list of layers."""

    head_dim: int | None = 128
    max_position_embeddings: int = 16384
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False
    sliding_window: int | None = 1024
    layer_types: tuple[str, ...] | None = None
    global_attn_every_n_layers: int = 4
    mup_enabled: bool = False
    num_dense_layers: Amount = Amount(1)
    moe_intermediate_size: int = 1408
    num_experts: int = 64
    num_experts_per_tok: int = 6
    num_shared_experts: Amount = Amount(2)
    route_scale: float = 1.0
    renormalise: bool = True
    windows_turn: ClassVar[bool] = True
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "renormalise"})

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers, every = range(self.num_hidden_layers), self.global_attn_every_n_layers
        if self.layer_types is None:
            return tuple(self.sliding_window if (n + 1) % every else None for n in layers)
        return windows(self.layer_types, len(layers), self.sliding_window)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="afmoe", eps=config.rms_norm_eps)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    experts = MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=grouped_router(config.num_experts_per_tok, config.renormalise, config.route_scale),
        activation=activation(config.hidden_act),
        selection_bias=True,
        shared_inner=config.moe_intermediate_size * config.num_shared_experts,
    )
    scaled = config.mup_enabled or config.source == "gguf"
    x = decoder.embed(math.sqrt(config.hidden_size) if scaled else 1.0)
    for n, window in enumerate(config.windows()):
        mixer = attention(
            config, rope=rope if window else None, window=window,
            qk_norm=QKNorm(config.rms_norm_eps), gate=AttentionGate("sigmoid"),
            biased=config.attention_bias, output_biased=config.attention_bias,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer, table=GATED, after="post_attention_layernorm")
        op, table = (mlp, MLP) if n < config.num_dense_layers else (experts, EXPERTS)
        x = decoder.feed_forward(
            x, n, op, table=table, before="pre_mlp_layernorm", after="post_mlp_layernorm"
        )
    return decoder.finish(x)
