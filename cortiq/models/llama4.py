"""Llama 4's text model: chunked attention, layers that rotate nothing, experts by sigmoid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedMLP, MoE, QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, layer_list
from cortiq.models.names import Names
from cortiq.models.parts import MLP, Decoder, activation, attention
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import Growth, Proportional
from cortiq.numerics.route import Router

ARCHITECTURES = ("llama4_text", "llama4")
GGUF = ("llama4",)
KEYS = Keys(
    harmless=frozenset({"for_llm_compression"}),
    gguf={
        "attention.sliding_window": "chunk",
        "expert_feed_forward_length": "intermediate_size",
        "feed_forward_length": "intermediate_size_mlp",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
)
INNER, ALONE, SHARED = "feed_forward", "feed_forward.experts", "feed_forward.shared_expert"
UP = ("gate_proj", "up_proj")
JOINT = tuple(f"{ALONE}.{part}" for part in UP)
NAMES = Names(
    gguf={
        f"{INNER}.router": "ffn_gate_inp",
        **{f"{INNER}.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        **{f"{ALONE}.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
        **{f"{SHARED}.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    },
    fused=(
        FusedTensor(f"{ALONE}.gate_up_proj", JOINT, JOINT, bare=True),
        FusedTensor(f"{ALONE}.down_proj", (f"{ALONE}.down_proj",), (f"{ALONE}.down_proj",), True),
    ),
)
EXPERTS: Mapping[str, str] = {
    "router": "router.weight",
    **{role: f"experts.{tensor}" for role, tensor in MLP.items()},
    **{f"shared_{role}": f"shared_expert.{tensor}" for role, tensor in MLP.items()},
}
CHUNKED = "chunked_attention"
NORMED_EXPERTS = 16
"""GGUF files do not say whether queries and keys are normed: those with so many experts are."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Llama4TextConfig`; `intermediate_size` is that of an expert.

    Attributes
    ----------
    chunk : 0 in GGUF files whose layers all see everything.
    """

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False
    intermediate_size_mlp: int = 16384
    num_local_experts: int = 16
    num_experts_per_tok: int = 1
    moe_layers: tuple[int, ...] | None = None
    interleave_moe_layer_step: int = 1
    use_qk_norm: bool = True
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    attention_chunk_size: int | None = 8192
    layer_types: tuple[str, ...] | None = None
    attn_temperature_tuning: bool | int = True
    floor_scale: int = 8192
    attn_scale: float = 0.1
    chunk: int | None = None
    default_theta: ClassVar[float] = 500000.0
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "chunk"})

    def turning(self) -> tuple[bool, ...]:
        """Return whether each layer rotates queries and keys: all but every fourth, by default."""
        count, every = self.num_hidden_layers, self.no_rope_layer_interval
        listed = self.no_rope_layers or tuple((n + 1) % every != 0 for n in range(count))
        if len(listed) != count:
            message = f"no_rope_layers has {len(listed)} entries for {count} layers"
            raise FormatError(message, where="config")
        return tuple(map(bool, listed))

    def chunks(self) -> tuple[int, ...]:
        """Return the chunk that each layer's rows see, 0 for everything."""
        size = self.attention_chunk_size or 0
        usual = tuple(CHUNKED if turns and size else GLOBAL for turns in self.turning())
        kinds = layer_list(self.layer_types or usual, self.num_hidden_layers, (GLOBAL, CHUNKED))
        return tuple(size if kind == CHUNKED else 0 for kind in kinds)

    def sparse(self) -> frozenset[int]:
        """Return the layers that have experts."""
        step = self.interleave_moe_layer_step
        usual = range(step - 1, self.num_hidden_layers, step)
        return frozenset(usual if self.moe_layers is None else self.moe_layers)

    def normed(self) -> bool:
        """Return whether queries and keys of layers that rotate them are normed."""
        named = self.source == "gguf" and self.num_local_experts != NORMED_EXPERTS
        return self.use_qk_norm and not named

    def mixer(self, table: RopeTable, turns: bool, chunk: int) -> Attention:
        """Return a layer's attention; queries of one that rotates nothing grow with position."""
        still = Growth(Proportional(0.0), self.attn_scale, self.floor_scale, 1)
        grows = self.attn_temperature_tuning and not turns
        return attention(
            self, rope=table if turns else None, pairing="interleaved", chunk=chunk,
            query_rope=RopeTable(table.base, self.head_width, still) if grows else None,
            qk_norm=self._qk_norm() if turns and self.normed() else None,
            biased=self.attention_bias, output_biased=self.attention_bias,
        )  # fmt: skip

    def _qk_norm(self) -> QKNorm:
        return QKNorm(self.rms_norm_eps, after_rope=True, weighted=False)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, act = config.hidden_size, activation(config.hidden_act)
    decoder = Decoder(config, context, family="llama4", eps=config.rms_norm_eps)
    table = rope_table(config, context)
    mlp = GatedMLP(width, config.intermediate_size_mlp, act)
    experts = MoE(
        width=width,
        inner=config.intermediate_size,
        experts=config.num_local_experts,
        router=Router(config.num_experts_per_tok, "sigmoid"),
        activation=act,
        shared_inner=config.intermediate_size,
        weighs_gate=True,
    )
    x = decoder.embed()
    for n, (turns, chunk) in enumerate(zip(config.turning(), config.chunks(), strict=True)):
        x = decoder.mixer(x, n, config.mixer(table, turns, chunk))
        if n in config.sparse():
            x = decoder.feed_forward(x, n, experts, tensors=INNER, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp, tensors=INNER)
    return decoder.finish(x)
