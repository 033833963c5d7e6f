"""Families whose layers are attention and one MLP, declared for `test_every_family.py`."""

from __future__ import annotations

from family_harness import Family

ROPE = "rope_parameters"
USUAL = [{"rms_norm_eps": 0.021}, {"hidden_act": "gelu_pytorch_tanh"}, {f"{ROPE}.rope_theta": 9e3}]
"""Options of nearly every family."""
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWS = {"use_sliding_window": True, "sliding_window": 9, "layer_types": LAYERS}

QWEN2 = Family(
    "qwen2",
    "Qwen2Config",
    switches={**WINDOWS, "tie_word_embeddings": True},
    moves=[
        *USUAL,
        {"sliding_window": 10},
        {"layer_types": ["full_attention", *LAYERS[1:]]},
        {"sliding_window": 9, "layer_types": ..., "max_window_layers": 1},
    ],
    refused=[({f"{ROPE}.rope_type": "dynamic", f"{ROPE}.factor": 2.0}, "dynamic NTK")],
)
QWEN3 = Family(
    "qwen3",
    "Qwen3Config",
    switches={**WINDOWS, "attention_bias": True, "tie_word_embeddings": True},
    moves=QWEN2.moves,
)
FAMILIES = [QWEN2, QWEN3]
