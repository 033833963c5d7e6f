"""Qwen 3, dense: Qwen 2 with normed query and key heads in place of the biases."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.ir.layers import QKNorm
from cortiq.models import qwen2
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("qwen3", "qwen3_vl_text", "qwen3vl")
GGUF = ("qwen3", "qwen3vl")
KEYS = replace(qwen2.KEYS, defaults={"qwen3_vl_text": {"rope_theta": 5e5}})
NAMES = Names(unread=r"cls\.output\.weight")
"""Of a reranker's GGUF file: the head's rows for "yes" and "no", once more."""


@dataclass(frozen=True, kw_only=True)
class Config(qwen2.Config):
    """Fields of `Qwen3Config`."""

    head_dim: int | None = 128
    attention_bias: bool = False


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; one that sees images turns rows on several axes, and adds to some layers."""
    decoder = Decoder(config, context, family="qwen3", eps=config.rms_norm_eps)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    biased, qk_norm = config.attention_bias, QKNorm(config.rms_norm_eps)
    x, axes = decoder.embed(), decoder.axes(rows)
    for n, window in enumerate(config.windows()):
        mixer = attention(
            config, rope=rope, window=window, qk_norm=qk_norm, biased=biased,
            output_biased=biased, sections=rows.sections,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer, others=axes)
        x = decoder.deepened(decoder.feed_forward(x, n, mlp), n, rows)
    return decoder.finish(x)
