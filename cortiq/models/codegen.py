"""CodeGen: GPT-J with queries, values and keys of each quarter of the heads in one matrix."""

from __future__ import annotations

import dataclasses

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.models import gptj
from cortiq.models.config import Keys
from cortiq.models.gptj import Config as Config
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("codegen",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases=gptj.KEYS.aliases,
    harmless=gptj.KEYS.harmless | {"n_ctx"},
    only={"scale_attn_weights": True},
)
SHARDS = range(4)
"""Devices that the models were made on, each with a quarter of the heads."""
NAMES = dataclasses.replace(
    gptj.NAMES,
    fused=(
        FusedTensor("attn.qkv_proj", tuple(f"attn.{role}{n}" for n in SHARDS for role in "qvk")),
    ),
    joined={f"attn.{role}_proj": tuple(f"attn.{role}{n}" for n in SHARDS) for role in "qkv"},
    unread=r"h\.\d+\.attn\.(masked_bias|causal_mask|bias)",
)


def build(config: Config, context: int) -> Program:
    """Build the trunk; FormatError for heads that do not fall into quarters."""
    if config.num_attention_heads % len(SHARDS):
        what = f"{config.num_attention_heads} heads, which are no multiple of {len(SHARDS)}"
        raise FormatError(what, where="config")
    return gptj.build(config, context)
