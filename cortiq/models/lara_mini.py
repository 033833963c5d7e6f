"""Lara 4 Mini: delta nets, windows that turn, attention that does not; experts everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models.config import Amount, Keys
from cortiq.models.flint import EXPERTS
from cortiq.models.layer_kinds import GLOBAL, LOCAL, layer_list
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.qwen3_next import DELTA, LINEAR, LinearConfig, delta_net
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.route import Router

ARCHITECTURES = ("lara_mini",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(aliases={"num_local_experts": "num_experts"})
PARTS = tuple(f"linear_attn.in_proj_{role}" for role in ("qkv", "z", "b", "a"))
GATE, UP, DOWN = (f"mlp.experts.{role}_proj" for role in ("gate", "up", "down"))
NAMES = Names(
    fused=(
        FusedTensor("linear_attn.in_proj", PARTS),
        FusedTensor("mlp.experts.gate_up_proj", (GATE, UP), bare=True),
        FusedTensor("mlp.experts.down_proj", (DOWN,), bare=True),
    )
)
MIXER: Mapping[str, str] = {**DELTA, "norm": "out_norm.weight"}
PATTERN = (LINEAR, LOCAL, LINEAR, GLOBAL, LOCAL)
"""Kinds of layers in turns, where no list says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Config(LinearConfig):
    """Fields of `LaraMiniConfig`."""

    intermediate_size: Amount = Amount(0)  # type: ignore[assignment]
    num_key_value_heads: int | None = 4
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    tie_word_embeddings: bool = True
    sliding_window: int = 512
    linear_num_key_heads: int = 8
    linear_num_value_heads: int = 16
    num_experts: int = 128
    num_experts_per_tok: int = 4
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: Amount = Amount(512)
    default_turned: ClassVar[float] = 1.0
    not_in_json: ClassVar[frozenset[str]] = LinearConfig.not_in_json | {
        "intermediate_size", "full_attention_interval",
    }  # fmt: skip

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer; errors as `LinearConfig.kinds`."""
        if self.linear_num_value_heads % self.linear_num_key_heads:
            heads = f"{self.linear_num_key_heads} key heads, {self.linear_num_value_heads} value"
            raise FormatError(f"delta nets have {heads} heads", where="config")
        count = self.num_hidden_layers
        turns = tuple(PATTERN[n % len(PATTERN)] for n in range(count))
        return layer_list(self.layer_types or turns, count, (LINEAR, LOCAL, GLOBAL))


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="lara_mini", eps=config.rms_norm_eps)
    net, rope = delta_net(config), rope_table(config, context)
    experts = MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=Router(config.num_experts_per_tok, renormalise=config.norm_topk_prob),
        activation=activation(config.hidden_act),
        shared_inner=config.shared_expert_intermediate_size,
    )
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        if kind == LINEAR:
            x = decoder.mixer(x, n, net, name="delta", tensors="linear_attn", table=MIXER)
        else:
            near = kind == LOCAL
            mixer = attention(
                config, rope=rope if near else None, window=config.sliding_window if near else None,
                qk_norm=QKNorm(config.rms_norm_eps), biased=config.attention_bias,
                output_biased=config.attention_bias,
            )  # fmt: skip
            x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, table=EXPERTS)
    return decoder.finish(x)
