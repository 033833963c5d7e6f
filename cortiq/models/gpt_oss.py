"""GPT-OSS: attention sinks, windows in every other layer, clamped experts with biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import Attention, Gating, MoE
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import layer_list
from cortiq.models.names import Names
from cortiq.models.parts import Decoder
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.route import Router

ARCHITECTURES = ("gpt_oss", "gpt-oss")
GGUF = ("gpt-oss",)
KEYS = Keys(
    aliases={"num_experts": "num_local_experts"},
    same_as={"experts_per_token": "num_experts_per_tok"},
    harmless=frozenset({"initial_context_length"}),
    only={"hidden_act": "silu"},
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias"},
    gguf={"expert_feed_forward_length": "expert_width"},
)
ROLES = ("gate", "up", "down")
STACKS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
NAMES = Names(
    gguf={
        "post_attention_layernorm": "post_attention_norm",
        "self_attn.sinks": "attn_sinks.weight",
        "mlp.router": "ffn_gate_inp",
        **{f"mlp.experts.{role}_proj_bias": f"ffn_{role}_exps.bias" for role in ROLES},
    },
    fused=tuple(FusedTensor(name, (name,), (name,), bare=True) for name in STACKS),
)
EXPERTS: Mapping[str, str] = {
    "router": "router.weight", "router_bias": "router.bias",
    "gate_up": "experts.gate_up_proj.weight", "gate_up_bias": "experts.gate_up_proj_bias",
    "down": "experts.down_proj.weight", "down_bias": "experts.down_proj_bias",
}  # fmt: skip
EXPERTS_APART: Mapping[str, str] = {
    **EXPERTS,
    **{role: f"experts.{role}_proj.weight" for role in ROLES},
    **{f"{role}_bias": f"experts.{role}_proj_bias" for role in ROLES},
}
"""In GGUF files, which hold gate and up apart."""
KINDS = ("sliding_attention", "full_attention")


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `GptOssConfig`."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 64
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    sliding_window: int | None = 128
    layer_types: tuple[str, ...] | None = None
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    expert_width: int | None = None
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "expert_width"})
    default_theta: ClassVar[float] = 150000.0

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers = self.num_hidden_layers
        kinds = (KINDS * layers)[:layers]
        if self.layer_types is not None:
            kinds = layer_list(self.layer_types, layers, KINDS)
        return tuple(self.sliding_window if kind == KINDS[0] else None for kind in kinds)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, apart = config.hidden_size, config.source == "gguf"
    decoder = Decoder(config, context, family="gpt_oss", eps=config.rms_norm_eps)
    rope = dict(config.rope_parameters)
    if apart and rope.get("rope_type") == "yarn":
        rope["truncate"] = False  # as all files of the family; GGUF does not say
    attention = Attention(
        width=width,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(replace(config, rope_parameters=rope), context),
        sinks=True,
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )
    gating = Gating(limit=config.swiglu_limit, steepness=config.swiglu_alpha, up_shift=1.0)
    experts = MoE(
        width=width,
        inner=config.expert_width or config.intermediate_size,
        experts=config.num_local_experts,
        router=Router(config.num_experts_per_tok, "softmax_topk"),
        activation=gating,
        interleaved=not apart,
        biased=True,
        router_biased=True,
    )
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        x = decoder.mixer(x, n, replace(attention, window=window))
        x = decoder.feed_forward(x, n, experts, table=EXPERTS_APART if apart else EXPERTS)
    return decoder.finish(x)
