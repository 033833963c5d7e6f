"""Qwen 3.5 MoE's text model: Qwen 3.5 with experts and a gated shared one in every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.models import qwen3_5
from cortiq.models.qwen2_moe import EXPERTS, experts_of
from cortiq.models.qwen3_next import LinearConfig

ARCHITECTURES = ("qwen3_5_moe_text", "qwen35moe")
GGUF = ("qwen35moe",)
KEYS = replace(qwen3_5.KEYS, aliases={"num_local_experts": "num_experts"})
NAMES = qwen3_5.NAMES


@dataclass(frozen=True, kw_only=True)
class Config(LinearConfig):
    """Fields of `Qwen3_5MoeTextConfig`; no layer has an MLP of `intermediate_size`."""

    intermediate_size: int = 0
    num_key_value_heads: int | None = 2
    max_position_embeddings: int = 32768
    num_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; one that sees images turns rows by their positions on several axes."""
    decoder = qwen3_5.HybridDecoder(config, context, "qwen3_5_moe", rows)
    experts = experts_of(config, renormalise=True)
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        x = decoder.feed_forward(decoder.mixed(x, n, kind), n, experts, table=EXPERTS)
    return decoder.finish(x)
