"""Gemma 4: declarations."""

from __future__ import annotations

from family_harness import Family

ROPE, LOCAL, FULL = "rope_parameters", "sliding_attention", "full_attention"


def by_kind(full, local, share):
    """Rope parameters of both kinds of layers."""
    return {
        FULL: {"rope_type": "proportional", "rope_theta": full, "partial_rotary_factor": share},
        LOCAL: {"rope_type": "default", "rope_theta": local},
    }


ELSEWHERE = frozenset({"per_layer_config", "use_bidirectional_attention", "layer_types"})
PLAIN = {
    "sliding_window": 9, "layer_types": [LOCAL, FULL], "global_head_dim": 16,
    "hidden_size_per_layer_input": 0, ROPE: by_kind(1e3, 300.0, 0.5),
}  # fmt: skip
GEMMA4 = Family(
    "gemma4",
    "Gemma4TextConfig",
    base=PLAIN,
    shapes={
        "odd": {
            "layer_types": [LOCAL, FULL, FULL], "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 96,
        },
        "switched": {"layer_types": [LOCAL, FULL, LOCAL, FULL], "num_hidden_layers": 4},
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "final_logit_softcapping": 3.0,
        "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 96,
    },
    moves=[
        {"rms_norm_eps": 0.021}, {"hidden_activation": "relu"}, {"sliding_window": 10},
        {f"{ROPE}.{FULL}.rope_theta": 900.0}, {f"{ROPE}.{LOCAL}.rope_theta": 350.0},
        {f"{ROPE}.{FULL}.partial_rotary_factor": 0.25}, {"final_logit_softcapping": 3.2},
    ],
    refused=[({"use_bidirectional_attention": "all"}, "use_bidirectional_attention")],
    elsewhere=ELSEWHERE | {
        "global_head_dim", "num_global_key_value_heads", "enable_moe_block", "num_experts",
        "top_k_experts", "moe_intermediate_size", "attention_k_eq_v",
    },
)  # fmt: skip
GEMMA4_EXPERTS = Family(
    "gemma4",
    "Gemma4TextConfig",
    base={
        **PLAIN, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
        "moe_intermediate_size": 24,
    },
    shapes={
        "odd": {"layer_types": [LOCAL, FULL, FULL]},
        "switched": {"layer_types": [LOCAL, FULL, FULL], "num_global_key_value_heads": 2},
    },
    switches={"attention_k_eq_v": True, "tie_word_embeddings": True},
    moves=[{"rms_norm_eps": 0.021}, {"hidden_activation": "relu"}, {"top_k_experts": 3}],
    sizes=("num_experts", "moe_intermediate_size"),
    elsewhere=ELSEWHERE | {
        "global_head_dim", "num_global_key_value_heads", "hidden_size_per_layer_input",
        "vocab_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp",
        "final_logit_softcapping", "enable_moe_block", "attention_bias", "sliding_window",
    },
    title="gemma4-experts",
)  # fmt: skip
FAMILIES = [GEMMA4, GEMMA4_EXPERTS]
