"""Phi 3.5 MoE: LayerNorms, biases; experts weighed one by one among those near to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import LayerNorm, MoE
from cortiq.models import mixtral
from cortiq.models.config import ORIGINAL, Amount, BaseConfig, Keys
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import check_rope_values, rope_table
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router

ARCHITECTURES = ("phimoe",)
KEYS = Keys(
    harmless=frozenset({"input_jitter_noise"}),
    only={"num_experts_per_tok": 2},
    gguf={"expert_used_count": ""},
    gguf_only={"expert_used_count": 2},
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias", "lm_head_bias": "output.bias"},
)
NAMES = mixtral.NAMES
CHOSEN = 2
"""Experts of a row, whatever a file would say: the router is defined for two."""
AMPLITUDES = ("short_mscale", "long_mscale")


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `PhimoeConfig`; GGUF files say 0 for no window, and have no noise of the router."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    sliding_window: Amount | None = None
    num_local_experts: int = 16
    router_jitter_noise: float = 0.01
    attention_bias: bool = False
    lm_head_bias: bool = False
    default_theta: ClassVar[float] = 1000000.0


def rope(config: Config, context: int) -> RopeTable:
    """Return the table; longrope's amplitude is a number of the file for each list of factors.

    Raises
    ------
    FormatError : a folder with longrope lacks such a number.
    """
    given = dict(config.rope_parameters)
    if given.get("rope_type") == "longrope" and config.source != "gguf":
        absent = [name for name in AMPLITUDES if name not in given]
        if absent:
            raise FormatError(f"longrope lacks {' and '.join(absent)}", where="config")
        check_rope_values(given, "config")
        amplitudes = [given.pop(name) for name in AMPLITUDES]
        is_long = context > given.get(ORIGINAL, config.max_position_embeddings)
        given["attention_factor"] = amplitudes[is_long]
    return rope_table(replace(config, rope_parameters=given), context)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, biased = config.hidden_size, config.attention_bias
    norm = LayerNorm(width, config.rms_norm_eps)
    decoder = Decoder(config, context, family="phimoe", norm=norm)
    mixer = attention(
        config, rope=rope(config, context), window=config.sliding_window or None, biased=biased,
        output_biased=biased,
    )  # fmt: skip
    router = Router(CHOSEN, "sparse_mixer", margin=2 * config.router_jitter_noise)
    inner, act = config.intermediate_size, activation(config.hidden_act)
    experts = MoE(width, inner, config.num_local_experts, router, act)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, tensors="block_sparse_moe", table=mixtral.EXPERTS)
    return decoder.finish(x, biased=config.lm_head_bias)
