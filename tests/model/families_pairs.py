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
FAMILIES = [DIFFLLAMA]
