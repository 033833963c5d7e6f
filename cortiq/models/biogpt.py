"""BioGPT: OPT's blocks with a scaled embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models import opt
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("biogpt",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(harmless=frozenset({"activation_dropout", "layer_norm_eps", "layerdrop"}))
"""Norms have an eps of 1e-5, whatever the file says."""
NAMES = Names(
    folder={
        "model.norm.": "biogpt.layer_norm.", "model.": "biogpt.", "lm_head.": "output_projection.",
    },
    fused=(FusedTensor("model.embed_positions", ("model.positions",), skipped=2),),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(opt.Activated):
    """Fields of `BioGptConfig`."""

    max_position_embeddings: int = 1024
    scale_embedding: bool = True


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    factor = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
    return opt.trunk(config, context, "biogpt", multiplier=factor)
