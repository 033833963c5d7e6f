"""Qwen 3 VL MoE's text model: Qwen 3 MoE, with all experts of a layer in two tensors.

The first folders have the matrices of an expert the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.models import qwen3_moe
from cortiq.models.names import Names
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("qwen3_vl_moe_text",)
GGUF: tuple[str, ...] = ()
KEYS = replace(qwen3_moe.KEYS, defaults={"qwen3_vl_moe_text": {"rope_theta": 5e5}})
GATE, UP, DOWN = (f"mlp.experts.{part}_proj" for part in ("gate", "up", "down"))
NAMES = Names(
    fused=(
        FusedTensor("mlp.experts.gate_up_proj", (GATE, UP), (GATE, UP), True, either=True),
        FusedTensor(DOWN, (DOWN,), (DOWN,), True, either=True),
    )
)
build = qwen3_moe.build


@dataclass(frozen=True, kw_only=True)
class Config(qwen3_moe.Config):
    """Fields of `Qwen3VLMoeTextConfig`, whose weights of experts always sum to 1."""

    num_key_value_heads: int | None = 16
    max_position_embeddings: int = 128000
    num_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408

    @property
    def renormalises(self) -> bool:
        """Whether weights are divided by their sum."""
        return True
