"""Families that mix recurrent layers with attention: declarations."""

from __future__ import annotations

import dataclasses

from family_harness import Family
from gguf_files import GGUF
from gguf_hybrid import (
    FULL,
    LINEAR,
    delta_values,
    granite_tensors,
    granite_values,
    kimi_tensors,
    kimi_values,
    nemotron_tensors,
    nemotron_values,
    next_tensors,
    tiled_tensors,
)

from cortiq.models import nemotron_h

ROPE = "rope_parameters"
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
    elsewhere=frozenset({
        "decoder_sparse_step", "layer_types", "full_attention_interval"
    }),
    gguf=[GGUF("qwen3next", geometries=("wide",), values=delta_values, tensors=next_tensors)],
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
    gguf=[GGUF("qwen35", geometries=("wide", "odd"), values=delta_values, tensors=tiled_tensors)],
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
    gguf=[
        GGUF("qwen35moe", geometries=("wide", "odd"), values=delta_values, tensors=tiled_tensors),
    ],
)  # fmt: skip
STATES = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_d_conv": 3}
GRANITE4 = Family(
    "granitemoehybrid",
    "GraniteMoeHybridConfig",
    base={
        **STATES, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24,
        "shared_intermediate_size": 20, "attention_multiplier": 0.25,
    },
    shapes={
        "wide": {"layer_types": [LINEAR, FULL], "position_embedding_type": "rope"},
        "odd": {"layer_types": [LINEAR, FULL, LINEAR]},
        "switched": {"layer_types": [FULL, LINEAR, FULL]},
    },
    switches={
        "attention_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False,
        "tie_word_embeddings": True, "embedding_multiplier": 6.0, "attention_multiplier": 0.4,
        "residual_multiplier": 0.7, "logits_scaling": 3.0, "num_local_experts": 0,
        "position_embedding_type": None,
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {f"{ROPE}.rope_theta": 900.0},
        {"embedding_multiplier": 6.1}, {"attention_multiplier": 0.41},
        {"residual_multiplier": 0.71}, {"logits_scaling": 3.1},
        {"time_step_limit": [1.0, 1.5]},
    ],
    sizes=(*STATES, "shared_intermediate_size", "mamba_d_head", "mamba_expand"),
    refused=[({"position_embedding_type": "alibi"}, "alibi")],
    elsewhere=frozenset({"mlp_bias", "layer_types"}),  # Granite 3's; kinds of layers
    gguf=[GGUF(
        "granitehybrid", permuted=True, values=granite_values, tensors=granite_tensors,
    )],
)  # fmt: skip
SPACES = {"mamba_num_heads": 4, "mamba_head_dim": 10, "n_groups": 2, "ssm_state_size": 6,
          "conv_kernel": 3}  # fmt: skip
BLOCKS = [LINEAR, FULL, "moe", "mlp"]
NEMOTRON_H = Family(
    "nemotron_h",
    "NemotronHConfig",
    base={
        **SPACES, "layer_norm_epsilon": 0.02, "n_routed_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 20,
        "layers_block_type": BLOCKS,
    },
    shapes={"odd": {"layers_block_type": [*BLOCKS, LINEAR]}},
    switches={
        "mlp_bias": True, "use_bias": True, "use_conv_bias": False, "n_group": 3,
        "norm_topk_prob": False, "routed_scaling_factor": 1.4,
        "moe_latent_size": 14,
    },
    moves=[
        {"layer_norm_epsilon": 0.021}, {"mlp_hidden_act": "silu"}, {"mamba_hidden_act": "relu"},
        {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5},
        {"time_step_min": 1.0}, {"routed_scaling_factor": 1.4, "topk_group": 2},
    ],
    sizes=(*SPACES, "n_routed_experts", "moe_intermediate_size",
           "moe_shared_expert_intermediate_size"),
    refused=[({"attention_bias": True}, "attention_bias")],
    elsewhere=frozenset({
        "layers_block_type", "hybrid_override_pattern", "num_nextn_predict_layers"
    }),
    required=frozenset({"layers_block_type"}),
)  # fmt: skip
FIELDS = frozenset(field.name for field in dataclasses.fields(nemotron_h.Config))
NEMOTRON_FILES = [
    Family(
        "nemotron_h", "NemotronHConfig", title=f"nemotron_h-{feed}", switches={}, moves=[],
        elsewhere=FIELDS, unread=("intermediate_size",) if feed == "moe" else (),
        base=NEMOTRON_H.base
        | {"layers_block_type": [LINEAR, FULL, feed, LINEAR], "time_step_min": 1e-9},
        gguf=[GGUF(kind, geometries=("wide",), values=nemotron_values, tensors=nemotron_tensors)],
    )
    for kind, feed in (("nemotron_h", "mlp"), ("nemotron_h_moe", "moe"))
]  # fmt: skip
"""As GGUF files have it: with experts or with MLPs, never both, and no bound of a step."""
KIMI_SIZES = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
    "linear_head_dim": 10, "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "num_experts": 8,
    "moe_intermediate_size": 24,
}  # fmt: skip
OLD_FORM = {
    "head_dim": 12, "num_heads": 2, "short_conv_kernel_size": 4, "full_attn_layers": [1, 3],
    "kda_layers": [2],
}  # fmt: skip
KIMI_LINEAR = Family(
    "kimi_linear",
    "KimiLinearConfig",
    base={
        **KIMI_SIZES, "num_experts_per_token": 2, "num_expert_group": 2, "pad_token_id": None,
        "head_dim": ..., "num_key_value_heads": 4,
    },
    shapes={
        "wide": {"layer_types": [LINEAR, FULL], "linear_num_heads": 4},
        "odd": {"num_hidden_layers": 5},
        "switched": {"linear_attn_config": OLD_FORM, "num_key_value_heads": 6},
    },
    switches={
        "q_lora_rank": 14, "attention_bias": True, "num_shared_experts": 2,
        "moe_renormalize": False, "routed_scaling_factor": 1.4, "num_expert_group": 4,
        "topk_group": 2,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
    moves=[
        *USUAL, {"num_experts_per_token": 3}, {"routed_scaling_factor": 1.5}, {"topk_group": 3},
    ],
    sizes=tuple(KIMI_SIZES),
    unread=("head_dim",),
    refused=[
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"linear_attn_config": {"gate_low_rank": 4}}, "gate_low_rank"),
    ],
    # two of the lists' forms, which test_published_configs.py reads; a product of others
    elsewhere=frozenset({
        "layer_types", "linear_attn_config", "first_k_dense_replace", "qk_head_dim",
    }),
    gguf=[GGUF(
        "kimi-linear", geometries=("wide",), values=kimi_values, tensors=kimi_tensors,
    )],
)  # fmt: skip
FAMILIES = [QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, GRANITE4, NEMOTRON_H, *NEMOTRON_FILES, KIMI_LINEAR]
