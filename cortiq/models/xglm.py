"""XGLM: OPT's blocks with a scaled embedding, and sines and cosines of positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models import opt
from cortiq.models.config import Keys
from cortiq.models.formed_vectors import FormedVector
from cortiq.models.names import Names
from cortiq.numerics.contract import Floats
from cortiq.numerics.sinusoids import sinusoids

ARCHITECTURES = ("xglm",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={
        "activation_function": "hidden_act", "attention_heads": "num_attention_heads",
        "d_model": "hidden_size", "ffn_dim": "intermediate_size", "num_layers": "num_hidden_layers",
    },
    harmless=frozenset({"activation_dropout", "dropout", "layerdrop"}),
)  # fmt: skip
FIRST = 2
"""Number of the first position's row: those before stand for padding."""


@dataclass(frozen=True, kw_only=True)
class Config(opt.Activated):
    """Fields of `XGLMConfig`."""

    scale_embedding: bool = True


def NAMES(config: Config) -> Names:
    """Return the tensors' names; that of positions is made."""
    count, width = config.max_position_embeddings, config.hidden_size

    def rows(vectors: Sequence[Floats], layer: int, name: str) -> Floats:
        return sinusoids(count + FIRST, width)[FIRST:]

    return Names(
        folder={"model.norm.": "model.layer_norm."},
        formed={"model.positions": FormedVector((), width, rows)},
        unread=r"model\.embed_positions\.weights",
    )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    factor = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
    return opt.trunk(config, context, "xglm", multiplier=factor)
