"""Qwen 3 MoE, and Qwen 3 Omni's text model: Qwen 3 with experts in place of the MLP."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.ir.layers import Attention, GatedMLP, MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import is_stepped_sparse
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("qwen3_moe", "qwen3moe", "qwen3vlmoe", "qwen3_omni_moe_text")
GGUF = ("qwen3moe", "qwen3vlmoe")
KEYS = Keys(
    aliases={"num_local_experts": "num_experts"},
    harmless=frozenset({"max_window_layers"}),
    defaults={
        "qwen3_omni_moe_text": {
            "norm_topk_prob": True,
            "rope_theta": 1e6,
            "sliding_window": None,
            "use_sliding_window": True,
        },
    },
    gguf={
        "attention.sliding_window": "",
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Qwen3MoeConfig`."""

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: Amount | None = Amount(4096)
    num_experts: int = 128
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False
    moe_intermediate_size: int = 768
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] | None = None

    @property
    def renormalises(self) -> bool:
        """Whether weights are divided by their sum; always for GGUF files, which have no key."""
        return self.norm_topk_prob or self.source == "gguf"

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return is_stepped_sparse(layer, self.decoder_sparse_step, self.mlp_only_layers)


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; of one that sees images see `qwen3.build`."""
    width, act = config.hidden_size, activation(config.hidden_act)
    decoder = Decoder(config, context, family="qwen3_moe", eps=config.rms_norm_eps)
    mixer = Attention(
        width=width,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(config, context),
        window=(config.sliding_window or None) if config.use_sliding_window else None,
        qk_norm=QKNorm(config.rms_norm_eps),
        biased=config.attention_bias,
        output_biased=config.attention_bias,
        sections=rows.sections,
    )
    mlp = GatedMLP(width, config.intermediate_size, act)
    experts = MoE(
        width=width,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=Router(config.num_experts_per_tok, renormalise=config.renormalises),
        activation=act,
    )
    x, axes = decoder.embed(), decoder.axes(rows)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, others=axes)
        if config.is_sparse(n):
            x = decoder.feed_forward(x, n, experts, table=MOE)
        else:
            x = decoder.feed_forward(x, n, mlp)
        x = decoder.deepened(x, n, rows)
    return decoder.finish(x)
