"""Granite 3 MoE: Granite with experts, and one MLP that every token passes if the file has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cortiq.ir import Program
from cortiq.ir.layers import MoE
from cortiq.models import granite
from cortiq.models.config import Amount, Keys
from cortiq.models.granitemoehybrid import EXPERTS, MIXTURE
from cortiq.models.granitemoehybrid import NAMES as NAMES
from cortiq.models.parts import Decoder, activation
from cortiq.numerics.route import Router

ARCHITECTURES = ("granitemoe", "granitemoeshared")
GGUF = ("granitemoe",)
KEYS = Keys(
    gguf={
        **granite.KEYS.gguf, "expert_shared_feed_forward_length": "shared_intermediate_size",
    },
    gguf_absent=granite.KEYS.gguf_absent,
    gguf_tensors=granite.KEYS.gguf_tensors,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(granite.Config):
    """Fields of `GraniteMoeConfig` and `GraniteMoeSharedConfig`."""

    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    shared_intermediate_size: Amount = Amount(0)


def experts_of(config: Any) -> MoE:
    """Return a layer's experts, of a configuration with the fields of `Config` for them."""
    return MoE(
        width=config.hidden_size,
        inner=config.intermediate_size,
        experts=config.num_local_experts,
        router=Router(config.num_experts_per_tok, "softmax_topk"),
        activation=activation(config.hidden_act),
        shared_inner=config.shared_intermediate_size,
    )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(
        config, context, family="granitemoe", eps=config.rms_norm_eps,
        residual=config.residual_multiplier,
    )  # fmt: skip
    mixer = granite.mixer_of(config, context)
    experts = experts_of(config)
    x = decoder.embed(config.embedding_multiplier)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, tensors=MIXTURE, table=EXPERTS)
    return decoder.finish(x, multiplier=config.factor())
