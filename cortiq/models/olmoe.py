"""OLMoE: Llama's blocks with experts; queries and keys normed over their whole width."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import MoE
from cortiq.models import olmo2
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("olmoe",)
KEYS = Keys(
    aliases={"num_local_experts": "num_experts"},
    only={"clip_qkv": None},
    gguf={"expert_count": "num_experts"},
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(olmo2.Config):
    """Fields of `OlmoeConfig`."""

    max_position_embeddings: int = 4096
    num_experts: int = 64
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False


def mixture(config: Config) -> MoE:
    """Return the experts of every layer."""
    return MoE(
        width=config.hidden_size,
        inner=config.intermediate_size,
        experts=config.num_experts,
        router=Router(config.num_experts_per_tok, renormalise=config.norm_topk_prob),
        activation=activation(config.hidden_act),
    )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="olmoe", eps=config.rms_norm_eps)
    mixer = olmo2.mixer_of(config, rope_table(config, context))
    experts, x = mixture(config), decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, table=MOE)
    return decoder.finish(x)
