"""DeepSeek V3, R1, Kimi K2 and K2.5: latent attention; experts in groups, one of them shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program, Value
from cortiq.ir.layers import GatedMLP, LatentAttention, MoE
from cortiq.models.config import Amount, Keys
from cortiq.models.mla import JOINT, LatentConfig, latent_attention, names_of
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, grouped_router
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("deepseek_v3", "kimi_k2")
GGUF: tuple[str, ...] = ()
"""`deepseek2` reads these."""
KEYS = Keys(
    same_as={"head_dim": "qk_rope_head_dim"},
    harmless=frozenset({"aux_loss_alpha", "ep_size", "seq_aux"}),
    only={"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
)
NAMES = Names(fused=(JOINT,))


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig):
    """Fields of `DeepseekV3Config`."""

    num_key_value_heads: int | None = 128
    max_position_embeddings: int = 4096
    rope_interleave: bool = True
    n_routed_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 2048
    n_shared_experts: int = 1
    n_group: int = 8
    topk_group: int = 4
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    first_k_dense_replace: Amount = Amount(3)
    num_nextn_predict_layers: Amount = Amount(0)

    family: ClassVar[str] = "deepseek_v3"
    chosen_with_bias: ClassVar[bool] = True

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts."""
        return tuple(n >= self.first_k_dense_replace for n in range(self.num_hidden_layers))

    def mixer(self, context: int) -> LatentAttention:
        """Return a layer's attention."""
        pairing = "interleaved" if self.rope_interleave else "half"
        return latent_attention(self, rope_table(self, context), pairing)

    def mixing(self, decoder: Decoder, context: int) -> Callable[[Value, int], Value]:
        """Return what writes a layer's attention."""
        mixer, names = self.mixer(context), names_of(self)
        return lambda x, n: decoder.mixer(x, n, mixer, table=names)

    def router(self) -> Router:
        """Return the choice of experts."""
        scaling, norm = self.routed_scaling_factor, self.norm_topk_prob
        return grouped_router(
            self.num_experts_per_tok, norm, scaling, self.n_group, self.topk_group
        )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, act = config.hidden_size, activation(config.hidden_act)
    decoder = Decoder(config, context, family=config.family, eps=config.rms_norm_eps)
    mixed = config.mixing(decoder, context)
    mlp = GatedMLP(width, config.intermediate_size, act)
    experts = MoE(
        width=width,
        inner=config.moe_intermediate_size,
        experts=config.n_routed_experts,
        router=config.router(),
        activation=act,
        selection_bias=config.chosen_with_bias,
        shared_inner=config.moe_intermediate_size * config.n_shared_experts,
    )
    x = decoder.embed()
    for n, sparse in enumerate(config.sparse()):
        x = mixed(x, n)
        if sparse:
            x = decoder.feed_forward(x, n, experts, table=MOE)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
