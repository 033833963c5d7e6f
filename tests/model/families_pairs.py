"""Families of differential attention, and others that came last, for `test_every_family.py`."""

from __future__ import annotations

from families_dense import LLAMA3, USUAL
from families_mixed import ROPE
from family_harness import Family

DIFFLLAMA = Family(
    "diffllama",
    "DiffLlamaConfig",
    shapes={
        "wide": {"num_key_value_heads": 2}, "odd": {"num_key_value_heads": 4},
        "switched": {"num_attention_heads": 8, "num_key_value_heads": 4, ROPE: LLAMA3},
    },
    switches={"attention_bias": True, "tie_word_embeddings": True},
    moves=USUAL,
)  # fmt: skip
OLMO_HYBRID = Family(
    "olmo_hybrid",
    "OlmoHybridConfig",
    base={
        "head_dim": ..., "pad_token_id": 0, "eos_token_id": 1, "rope_parameters": None,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
        "linear_value_head_dim": 10, "num_hidden_layers": 4,
    },
    shapes={
        "odd": {
            "linear_num_key_heads": None, "linear_num_value_heads": None, "num_hidden_layers": 3,
            "linear_key_head_dim": None, "linear_value_head_dim": None,
        },
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "linear_allow_neg_eigval": False,
        ROPE: {"rope_type": "default", "rope_theta": 1e3},
        "layer_types": ["full_attention", *["linear_attention"] * 2, "full_attention"],
    },
    moves=[*USUAL[:2], {f"{ROPE}.rope_theta": 900.0}],
    sizes=(
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim",
    ),
)  # fmt: skip
FAMILIES = [DIFFLLAMA, OLMO_HYBRID]
