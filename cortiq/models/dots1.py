"""dots.llm1: Qwen 3's attention, DeepSeek V3's experts."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.gguf_keys import ABSENT, BY_SIGMOID, GROUPED_EXPERTS
from cortiq.models.layer_kinds import windows
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, attention, gated_mlp, grouped_router
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("dots1",)
KEYS = Keys(
    only={"moe_layer_freq": 1, "scoring_func": "noaux_tc", "use_sliding_window": False},
    gguf={**GROUPED_EXPERTS, "attention.sliding_window": ""},
    gguf_absent=ABSENT,
    gguf_only=BY_SIGMOID,
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Dots1Config`."""

    num_key_value_heads: int | None = 32
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    sliding_window: Amount | None = None
    max_window_layers: Amount = Amount(62)
    layer_types: tuple[str, ...] | None = None
    moe_intermediate_size: int = 1408
    n_shared_experts: Amount | None = None
    n_routed_experts: int
    num_experts_per_tok: int
    n_group: int = 1
    topk_group: int = 1
    first_k_dense_replace: Amount = Amount(0)
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers, window = range(self.num_hidden_layers), self.sliding_window or None
        if self.layer_types is None:
            return tuple(window if n >= self.max_window_layers else None for n in layers)
        return windows(self.layer_types, len(layers), window)

    def router(self) -> Router:
        """Return the choice of experts: DeepSeek V3's."""
        scaling, norm = self.routed_scaling_factor, self.norm_topk_prob
        return grouped_router(
            self.num_experts_per_tok, norm, scaling, self.n_group, self.topk_group
        )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="dots1", eps=config.rms_norm_eps)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    experts = MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.n_routed_experts,
        router=config.router(),
        activation=activation(config.hidden_act),
        selection_bias=True,
        shared_inner=config.moe_intermediate_size * (config.n_shared_experts or 0),
    )
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        mixer = attention(
            config, rope=rope, window=window, qk_norm=QKNorm(config.rms_norm_eps),
            biased=config.attention_bias, output_biased=config.attention_bias,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer)
        if n < config.first_k_dense_replace:
            x = decoder.feed_forward(x, n, mlp)
        else:
            x = decoder.feed_forward(x, n, experts, table=MOE)
    return decoder.finish(x)
