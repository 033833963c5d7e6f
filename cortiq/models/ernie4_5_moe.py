"""ERNIE 4.5 MoE: ERNIE 4.5 with experts by softmax, chosen with a bias, and shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import MoE
from cortiq.models import ernie4_5
from cortiq.models.config import Amount, Keys
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, attention, gated_mlp
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("ernie4_5_moe", "ernie4_5-moe")
GGUF = ("ernie4_5-moe",)
KEYS = Keys(
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    harmless=frozenset({"moe_norm_min"}),
    only={"moe_capacity": None, "moe_gate": "topk", "moe_use_aux_free": True},
    gguf={
        "expert_count": "moe_num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "moe_num_shared_experts",
        "expert_shared_feed_forward_length": "shared_inner",
        "expert_used_count": "moe_k",
        "interleave_moe_layer_step": "moe_layer_interval",
        "leading_dense_block_count": "moe_layer_start_index",
    },
    gguf_tensors={"use_bias": "blk.0.attn_q.bias"},
)
BIAS = "moe_statics.e_score_correction_bias"
NAMES = Names(
    gguf={f"mlp.{BIAS}": "exp_probs_b.bias"},
    unread=r"model\.mtp_\w+\..*",
)
EXPERTS: Mapping[str, str] = {**MOE, "bias": BIAS}


@dataclass(frozen=True, kw_only=True)
class Config(ernie4_5.Config):
    """Fields of `Ernie4_5_MoeConfig`; `moe_layer_end_index` is −1 for the last layer.

    Attributes
    ----------
    shared_inner : width of the shared experts together, as GGUF files give it.
    """

    num_key_value_heads: int | None = 4
    head_dim: int | None = None
    moe_intermediate_size: int = 1536
    moe_k: int = 6
    moe_num_experts: int = 64
    moe_num_shared_experts: Amount = Amount(2)
    moe_layer_start_index: Amount = Amount(1)
    moe_layer_end_index: float = -1.0
    moe_layer_interval: int = 1
    shared_inner: int | None = None
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "shared_inner"})

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        last = self.num_hidden_layers - 1
        end = last if self.moe_layer_end_index < 0 else self.moe_layer_end_index
        within = self.moe_layer_start_index <= layer <= end
        return within and (layer + 1) % self.moe_layer_interval == 0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="ernie4_5_moe", eps=config.rms_norm_eps)
    biased = config.use_bias
    mixer = attention(
        config, rope=rope_table(config, context), pairing="interleaved", biased=biased,
        output_biased=biased,
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act, biased)
    experts = MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.moe_num_experts,
        router=Router(config.moe_k, renormalise=True),
        activation=activation(config.hidden_act),
        selection_bias=True,
        shared_inner=config.shared_inner
        or config.moe_intermediate_size * config.moe_num_shared_experts,
        shared_biased=biased,
    )
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        if config.is_sparse(n):
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x, biased=biased)
