"""LFM2 MoE: LFM2 with a mixture of experts in all but the first layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedMLP, MoE, QKNorm, ShortConv
from cortiq.models import lfm2
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import layer_list
from cortiq.models.lfm2 import CONV, FEED_FORWARD, MIXERS
from cortiq.models.names import Names
from cortiq.models.parts import Decoder
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("lfm2_moe", "lfm2moe")
GGUF = ("lfm2moe",)
KEYS = Keys(
    aliases={"tie_embedding": "tie_word_embeddings"},
    same_as={"theta": "rope_theta"},
    gguf={
        **lfm2.KEYS.gguf,
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "leading_dense_block_count": "num_dense_layers",
    },
    gguf_only={"expert_gating_func": 2},
    gguf_tensors={"conv_bias": "blk.0.shortconv.conv.bias"},
)
NAMES = Names(
    gguf={
        **lfm2.NAMES.gguf,
        "feed_forward.gate": "ffn_gate_inp",
        "feed_forward.expert_bias": "exp_probs_b.bias",
        "feed_forward.experts.w1": "ffn_gate_exps",
        "feed_forward.experts.w3": "ffn_up_exps",
        "feed_forward.experts.w2": "ffn_down_exps",
    }
)
KINDS = ("conv", "full_attention")
EXPERTS: Mapping[str, str] = {
    "router": "gate.weight", "bias": "expert_bias",
    **{role: f"experts.{tensor}" for role, tensor in FEED_FORWARD.items()},
}  # fmt: skip
FLOOR = 1e-6
"""Added to the sum that weights are divided by."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Lfm2MoeConfig`."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 128000
    tie_word_embeddings: bool = True
    norm_eps: float = 1e-5
    conv_bias: bool = False
    conv_L_cache: int = 3
    layer_types: tuple[str, ...] | None = None
    kv_heads_of_layers: tuple[int, ...] | None = None
    num_dense_layers: Amount = Amount(2)
    num_experts: int = 32
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1792
    norm_topk_prob: bool = True
    use_expert_bias: bool = True
    routed_scaling_factor: float = 1.0
    default_theta: ClassVar[float] = 1000000.0
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "kv_heads_of_layers"})

    @property
    def kv_heads(self) -> int:
        """Key and value heads of the layers that attend."""
        if self.kv_heads_of_layers is not None:
            return max(self.kv_heads_of_layers, default=0)
        return super().kv_heads

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer; in GGUF files, layers without KV heads are convolutions."""
        listed = self.layer_types
        if self.kv_heads_of_layers is not None:
            listed = tuple(KINDS[heads > 0] for heads in self.kv_heads_of_layers)
        return layer_list(listed, self.num_hidden_layers, KINDS)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, eps = config.hidden_size, config.norm_eps
    decoder = Decoder(config, context, family="lfm2_moe", eps=eps)
    conv = ShortConv(width, config.conv_L_cache, config.conv_bias)
    attention = Attention(
        width=width,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(config, context),
        qk_norm=QKNorm(eps),
    )
    mlp = GatedMLP(width, config.intermediate_size)
    router = Router(
        config.num_experts_per_tok,
        "sigmoid",
        renormalise=config.norm_topk_prob,
        denominator_floor=FLOOR,
        routed_scaling=config.routed_scaling_factor,
    )
    experts = MoE(
        width=width,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=router,
        selection_bias=config.use_expert_bias,
    )
    x, before, tensors = decoder.embed(), "operator_norm", "feed_forward"
    for n, kind in enumerate(config.kinds()):
        if kind == "conv":
            x = decoder.mixer(x, n, conv, name="conv", tensors="conv", table=CONV, before=before)
        else:
            x = decoder.mixer(x, n, attention, table=MIXERS, before=before)
        if n < config.num_dense_layers:
            table, op = FEED_FORWARD, mlp
            x = decoder.feed_forward(x, n, op, tensors=tensors, table=table, before="ffn_norm")
        else:
            x = decoder.feed_forward(
                x, n, experts, tensors=tensors, table=EXPERTS, before="ffn_norm"
            )
    return decoder.finish(x, norm="model.embedding_norm")
