"""EXAONE MoE (K-EXAONE): windows, layers without one rotate nothing; DeepSeek V3's experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models import exaone4
from cortiq.models.config import Amount, Keys
from cortiq.models.gguf_keys import ABSENT, BY_SIGMOID, GROUPED_EXPERTS
from cortiq.models.layer_kinds import sparse_layers
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, attention, gated_mlp, grouped_router
from cortiq.models.rope import rope_table

ARCHITECTURES = ("exaone_moe", "exaone-moe")
GGUF = ("exaone-moe",)
KEYS = Keys(
    only={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    gguf={
        **GROUPED_EXPERTS,
        "expert_count": "num_experts",
        "expert_shared_count": "num_shared_experts",
    },
    gguf_absent=ABSENT,
    gguf_only=BY_SIGMOID,
)
NAMES = Names(gguf={"mlp.e_score_correction_bias": "exp_probs_b.bias"})
EXPERTS: Mapping[str, str] = {**MOE, "bias": "e_score_correction_bias"}


@dataclass(frozen=True, kw_only=True)
class Config(exaone4.Config):
    """Fields of `ExaoneMoeConfig`.

    Attributes
    ----------
    shared_inner : width of the shared experts together, as GGUF files give it.
    """

    first_k_dense_replace: Amount = Amount(1)
    mlp_layer_types: tuple[str, ...] | None = None
    moe_intermediate_size: int = 1024
    num_experts: int = 64
    num_experts_per_tok: int = 8
    num_shared_experts: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    n_group: int = 1
    topk_group: int = 1
    num_nextn_predict_layers: Amount = Amount(0)
    shared_inner: int | None = None
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "shared_inner"})

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts."""
        layers = range(self.num_hidden_layers)
        if self.mlp_layer_types is None:
            return tuple(n >= self.first_k_dense_replace for n in layers)
        return sparse_layers(self.mlp_layer_types, len(layers))


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="exaone_moe", eps=config.rms_norm_eps)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    experts = MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=grouped_router(
            config.num_experts_per_tok, config.norm_topk_prob, config.routed_scaling_factor,
            config.n_group, config.topk_group,
        ),
        activation=activation(config.hidden_act),
        selection_bias=True,
        shared_inner=config.shared_inner
        or config.moe_intermediate_size * config.num_shared_experts,
    )  # fmt: skip
    x = decoder.embed()
    for n, (window, sparse) in enumerate(zip(config.windows(), config.sparse(), strict=True)):
        turns = window is not None or not config.sliding_window
        mixer = attention(
            config, rope=rope if turns else None, window=window, qk_norm=QKNorm(config.rms_norm_eps)
        )
        x = decoder.mixer(x, n, mixer)
        if sparse:
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
