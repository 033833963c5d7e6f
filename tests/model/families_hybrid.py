"""Families that mix recurrent layers with attention: declarations."""

from __future__ import annotations

from family_harness import Family

ROPE = "rope_parameters"
LINEAR, FULL = "linear_attention", "full_attention"
USUAL = [{"rms_norm_eps": 0.021}, {"hidden_act": "gelu_pytorch_tanh"}]
DELTA = {
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 10, "linear_value_head_dim": 12,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
TURNED = {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}
QWEN3_NEXT = Family(
    "qwen3_next",
    "Qwen3NextConfig",
    base={
        **DELTA, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20, "layer_types": [LINEAR, FULL], ROPE: TURNED,
    },
    shapes={
        "odd": {"layer_types": [LINEAR, LINEAR, FULL], "decoder_sparse_step": 2,
                "linear_num_key_heads": 4, "head_dim": 12},
        "switched": {"layer_types": [FULL, LINEAR, LINEAR], "linear_conv_kernel_dim": 4},
    },
    switches={
        "attention_bias": True, "norm_topk_prob": False, "mlp_only_layers": [1],
        "tie_word_embeddings": True,
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {f"{ROPE}.partial_rotary_factor": 0.7},
        {f"{ROPE}.rope_theta": 900.0},
    ],
    sizes=(*DELTA, "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"),
    elsewhere=frozenset({"decoder_sparse_step", "layer_types", "full_attention_interval"}),
)  # fmt: skip
MROPE = {**TURNED, "mrope_section": [1, 1, 0], "mrope_interleaved": True}
QWEN3_5 = Family(
    "qwen3_5",
    "Qwen3_5TextConfig",
    base={**DELTA, "layer_types": [LINEAR, FULL], ROPE: MROPE},
    shapes={
        "odd": {"layer_types": [LINEAR, LINEAR, FULL], "linear_num_key_heads": 4, "head_dim": 12},
        "switched": {"layer_types": [FULL, LINEAR, LINEAR], "linear_conv_kernel_dim": 4},
    },
    switches={"attention_bias": True, "tie_word_embeddings": True},
    moves=[
        *USUAL, {f"{ROPE}.partial_rotary_factor": 0.7}, {f"{ROPE}.rope_theta": 900.0},
    ],
    sizes=tuple(DELTA),
    elsewhere=frozenset({"layer_types", "full_attention_interval"}),
)  # fmt: skip
QWEN3_5_MOE = Family(
    "qwen3_5_moe",
    "Qwen3_5MoeTextConfig",
    base={
        **DELTA, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20, "layer_types": [LINEAR, FULL], ROPE: MROPE,
        "intermediate_size": ...,
    },
    shapes={
        "odd": {"layer_types": [LINEAR, LINEAR, FULL], "linear_num_key_heads": 4, "head_dim": 12},
        "switched": {"layer_types": [FULL, LINEAR, LINEAR], "linear_conv_kernel_dim": 4},
    },
    switches={"attention_bias": True, "tie_word_embeddings": True},
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {f"{ROPE}.partial_rotary_factor": 0.7},
        {f"{ROPE}.rope_theta": 900.0},
    ],
    sizes=(*DELTA, "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"),
    unread=("intermediate_size",),
    elsewhere=frozenset({"layer_types", "full_attention_interval"}),
)  # fmt: skip
FAMILIES = [QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE]
