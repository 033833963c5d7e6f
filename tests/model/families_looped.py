"""Families that pass some of their layers several times, for `test_every_family.py`."""

from __future__ import annotations

from families_mixed import ROPE
from family_harness import Family

KINDS = ["sliding_attention", "full_attention", "sliding_attention"]


def ropes(full, local):
    """Rope parameters of both kinds of layers."""
    return {
        "full_attention": {"rope_type": "default", "rope_theta": full},
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


DORY = Family(
    "dory",
    "DoryConfig",
    base={
        "rms_norm_eps": ..., "num_hidden_layers": 3, "layer_types": KINDS, "sliding_window": 9,
        "n_input_layers": 1, "n_output_layers": 1, "initializer_range": 0.5,
        "ngpt_alpha_init": 0.3, ROPE: ropes(1e3, 300.0),
    },
    shapes={"odd": {"num_hidden_layers": 4, "layer_types": [*KINDS, KINDS[1]],
                    "n_recurrent_loops": 3}},
    switches={
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "n_recurrent_loops": 3, "n_input_layers": 0, "n_recurrent_layers": 2,
        "initializer_range": 0.6, "ngpt_alpha_init": 0.2, ROPE: ropes(800.0, 500.0),
        "layer_types": KINDS[1:] + KINDS[1:2],
    },
    moves=[
        {"hidden_act": "gelu_pytorch_tanh"}, {"sliding_window": 10}, {"n_recurrent_loops": 2},
        {"initializer_range": 0.62}, {"ngpt_alpha_init": 0.21},
        {f"{ROPE}.full_attention.rope_theta": 700.0},
        {f"{ROPE}.sliding_attention.rope_theta": 400.0},
    ],
    sizes=("n_input_layers", "n_recurrent_layers", "n_output_layers"),
    refused=[({"recurrent_kv_cache_mode": "last_loop"}, "recurrent_kv_cache_mode")],
)  # fmt: skip
FAMILIES = [DORY]
