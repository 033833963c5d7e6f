"""MiniMax-01 and M1: lightning attention, softmax attention in some layers, experts in all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Op, Program, Value
from cortiq.ir.layers import LightningAttention, MoE, Residual
from cortiq.ir.ops import Scale
from cortiq.models.alibi import lightning_slopes
from cortiq.models.config import BaseConfig, Keys, convert_config
from cortiq.models.layer_kinds import GLOBAL, by_layer, layer_list
from cortiq.models.mixtral import EXPERTS
from cortiq.models.mixtral import NAMES as MIXTRAL
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, activation, attention, named
from cortiq.models.qwen3_next import LINEAR
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("minimax", "minimax-01")
GGUF = ("minimax-01",)
KEYS = Keys(
    aliases={"num_experts": "num_local_experts"},
    harmless=frozenset({"block_size"}),
    gguf={
        "attention.recurrent_layers": "recurrent",
        "full_attention_interval": "every",
        "residual_scale": "residual_scale",
    },
    gguf_absent={"full_attention_interval": 8},
)
NAMES = Names(
    gguf={
        **MIXTRAL.gguf, "self_attn.norm": "attn_norm_2", "self_attn.output_gate": "attn_gate",
        "self_attn.out_proj": "attn_output",
    },
    unread=r".*\.self_attn\.(slope_rate|(query|key|diagonal)_decay)",
)  # fmt: skip
LIGHTNING: Mapping[str, str] = {
    "qkv": "qkv_proj.weight", "gate": "output_gate.weight", "norm": "norm.weight",
    "out": "out_proj.weight",
}  # fmt: skip
"""Roles of `LightningAttention` to tensor names."""
NORM_EPS = 1e-6
"""Of the norm within lightning attention, which no configuration changes."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MiniMaxConfig`; a branch is added to its own normed row."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    sliding_window: int | None = None
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    layer_types: tuple[str, ...] | None = None
    full_attn_alpha_factor: float = 1.0
    full_attn_beta_factor: float = 1.0
    linear_attn_alpha_factor: float = 1.0
    linear_attn_beta_factor: float = 1.0
    mlp_alpha_factor: float = 1.0
    mlp_beta_factor: float = 1.0
    default_theta: ClassVar[float] = 1000000.0

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer; without a list they take turns, softmax attention first."""
        turns = tuple((GLOBAL, LINEAR)[n % 2] for n in range(self.num_hidden_layers))
        return layer_list(self.layer_types or turns, self.num_hidden_layers, (GLOBAL, LINEAR))

    def lightning(self, layer: int) -> LightningAttention:
        """Return a layer's linear attention: later layers forget more slowly."""
        heads = self.num_attention_heads
        slope, ratio = lightning_slopes(heads, layer, self.num_hidden_layers)
        return LightningAttention(
            self.hidden_size, heads, self.head_width, NORM_EPS, slope, ratio,
            activation(self.hidden_act),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files.

    Attributes
    ----------
    residual_scale : of every branch's row, whose operator is added as it is.
    recurrent : whether each layer has linear attention; without it each but every `every`th.
    """

    residual_scale: float = 1.0
    every: int = 8
    recurrent: tuple[bool, ...] | None = None
    not_in_json: ClassVar[frozenset[str]] = frozenset({
        "source", "residual_scale", "every", "recurrent",
    })  # fmt: skip

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        count, scale = self.num_hidden_layers, self.residual_scale
        linear = tuple((n + 1) % self.every != 0 for n in range(count))
        if self.recurrent is not None:
            linear = by_layer(self.recurrent, count, "attention.recurrent_layers")
        return convert_config(
            Config, self, where, layer_types=tuple(LINEAR if one else GLOBAL for one in linear),
            full_attn_alpha_factor=scale, linear_attn_alpha_factor=scale, mlp_alpha_factor=scale,
        )  # fmt: skip


def _branch(
    decoder: Decoder,
    x: Value,
    op: Op,
    name: str,
    norm: str,
    weights: Mapping[str, str],
    factors: tuple[float, float],
) -> Value:
    """Write alpha · norm(x) + beta · op(norm(x)); values and slots are called after `name`."""
    row, layer = decoder.norm(x, f"{name}_norm", norm), name.rpartition(".")[0]
    slots = {role: f"{layer}.{role}" for role in op.slot_kinds()}
    position = (decoder.position,) if "kv" in slots else ()
    y = decoder.builder.add(op, row, *position, name=name, weights=weights, slots=slots)
    alpha, beta = factors
    if alpha != 1.0:
        row = decoder.builder.add(Scale(alpha), row, name=f"{name}_kept")
    out = f"{layer}.{'out' if name.endswith('.mlp') else 'middle'}"
    return decoder.builder.add(Residual(beta), row, y, name=out)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="minimax", eps=config.rms_norm_eps)
    attend = attention(
        config, rope=rope_table(config, context), window=config.sliding_window,
    )  # fmt: skip
    router = Router(config.num_experts_per_tok, "softmax", renormalise=True)
    experts = MoE(
        config.hidden_size, config.intermediate_size, config.num_local_experts, router,
        activation(config.hidden_act),
    )  # fmt: skip
    full = config.full_attn_alpha_factor, config.full_attn_beta_factor
    linear = config.linear_attn_alpha_factor, config.linear_attn_beta_factor
    mlp = config.mlp_alpha_factor, config.mlp_beta_factor
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        file, here = f"model.layers.{n}", f"layers.{n}"
        plain = kind == GLOBAL
        mixer: Op = attend if plain else config.lightning(n)
        names = named(mixer, f"{file}.self_attn", ATTENTION if plain else LIGHTNING)
        x = _branch(
            decoder, x, mixer, f"{here}.attention", f"{file}.input_layernorm", names,
            full if plain else linear,
        )  # fmt: skip
        names = named(experts, f"{file}.block_sparse_moe", EXPERTS)
        x = _branch(
            decoder, x, experts, f"{here}.mlp", f"{file}.post_attention_layernorm", names, mlp
        )
    return decoder.finish(x)
