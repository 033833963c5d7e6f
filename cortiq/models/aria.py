"""Aria's text model: Llama's blocks with experts, and shared ones that every token passes."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import MoE
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, attention
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.route import Router

ARCHITECTURES = ("aria_text",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(harmless=frozenset({"moe_aux_loss_coeff", "moe_z_loss_coeff"}))
GATE_UP = ("mlp.experts.gate_proj", "mlp.experts.up_proj")
DOWN = ("mlp.experts.down_proj",)
NAMES = Names(
    fused=(
        FusedTensor("mlp.experts.fc1", GATE_UP, GATE_UP),
        FusedTensor("mlp.experts.fc2", DOWN, DOWN),
    ),
)
EXPERTS = {**MOE, "router": "router.weight"}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `AriaTextConfig`."""

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    moe_num_experts: int = 8
    moe_topk: int = 2
    moe_num_shared_experts: Amount = Amount(2)


def build(config: Config, context: int) -> Program:
    """Build the trunk; routed experts are always gated by SiLU."""
    decoder = Decoder(config, context, family="aria", eps=config.rms_norm_eps)
    mixer = attention(
        config, rope=rope_table(config, context), biased=config.attention_bias,
        output_biased=config.attention_bias,
    )  # fmt: skip
    experts = MoE(
        width=config.hidden_size,
        inner=config.intermediate_size,
        experts=config.moe_num_experts,
        router=Router(config.moe_topk, "softmax_topk"),
        shared_inner=config.intermediate_size * config.moe_num_shared_experts,
        shared_activation=activation(config.hidden_act),
        shared_biased=config.mlp_bias,
    )
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, table=EXPERTS)
    return decoder.finish(x)
