"""Families with residual streams that are read through gates: declarations."""

from __future__ import annotations

from families_hybrid import DELTA, MROPE, USUAL
from family_harness import Family
from gguf_hybrid import LINEAR

ROPE = "rope_parameters"
INDEXED = "indexed_attention"
GRAMS = {
    "ple_embed_dim": 24, "ple_conv_kernel_size": 3, "ngram_size": 3, "heads_per_ngram": 2,
    "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4,
}  # fmt: skip
INDEXER = {
    "indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 14, "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}  # fmt: skip
QWEN4_EXP = Family(
    "qwen4_exp",
    "Qwen4ExpTextConfig",
    base={
        **DELTA, **GRAMS, **INDEXER, "ngram_vocab_size_base": 50, "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20, "hc_count": 3,
        "hc_lowrank": 10, "layer_types": [LINEAR, INDEXED], "ple_layer_ids": [1],
        "eos_token_id": 3, ROPE: MROPE, "intermediate_size": ...,
    },
    shapes={
        "odd": {
            "layer_types": [LINEAR, LINEAR, INDEXED], "linear_num_key_heads": 4, "head_dim": 12,
            "ple_layer_ids": [1, 2],
        },
        "switched": {"layer_types": [INDEXED, LINEAR, LINEAR], "ple_layer_ids": [3]},
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "output_gate_type": "sigmoid",
        "norm_topk_prob": False, "seed": 7, "hc_count": 2, "eos_token_id": [5, 3],
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {f"{ROPE}.partial_rotary_factor": 0.7},
        {f"{ROPE}.rope_theta": 900.0}, {"indexer_budget": 12}, {"indexer_compress_ratio": 2},
        {"indexer_n_heads": None}, {"eos_token_id": 4}, {"seed": 1235},
    ],
    sizes=(
        *DELTA, *GRAMS, "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size",
        "hc_lowrank", "indexer_head_dim", "indexer_n_heads",
    ),
    unread=("intermediate_size",),
    refused=[
        ({"indexer_kv_heads": 2}, "key heads"), ({"indexer_budget": 10}, "keys of windows"),
        ({"eos_token_id": None}, "ends a text"), ({"ngram_size": 1}, "heads of n-grams"),
    ],
    elsewhere=frozenset({  # kinds of layers; test_qwen4_exp.py
        "layer_types", "full_attention_interval", "indexer_kv_heads", "ngram_vocab_size_base",
        "ple_layer_ids",
    }),
)  # fmt: skip
FAMILIES = [QWEN4_EXP]
