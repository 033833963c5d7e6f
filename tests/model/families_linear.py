"""Families with linear attention, or with shared blocks, among their layers: declarations."""

from __future__ import annotations

from families_hybrid import ROPE, USUAL
from family_harness import Family
from gguf_hybrid import FULL, LINEAR

FACTORS = [f"{kind}_{end}_factor" for kind in ("full_attn", "linear_attn", "mlp")
           for end in ("alpha", "beta")]  # fmt: skip
MINIMAX = Family(
    "minimax",
    "MiniMaxConfig",
    base={
        "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": [LINEAR, FULL],
        ROPE: {"rope_type": "default", "rope_theta": 1e3}, "block_size": 7,
    },
    shapes={
        "odd": {"layer_types": [LINEAR, FULL, LINEAR], "num_attention_heads": 6, "head_dim": 6},
    },
    switches={
        "sliding_window": 8, "tie_word_embeddings": True, "layer_types": [FULL, LINEAR, LINEAR],
        **{name: 1.2 + 0.3 * n for n, name in enumerate(FACTORS)},
    },
    moves=[
        *USUAL, {f"{ROPE}.rope_theta": 900.0}, {"num_experts_per_tok": 3},
        {"sliding_window": 7}, *({name: 0.8} for name in FACTORS),
    ],
    sizes=("num_local_experts",),
)  # fmt: skip

FAMILIES = [MINIMAX]
