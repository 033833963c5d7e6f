"""Families that mix recurrent layers with attention: declarations."""

from __future__ import annotations

import numpy as np
from family_harness import Family
from gguf_files import GGUF

ROPE = "rope_parameters"
LINEAR, FULL = "linear_attention", "full_attention"
USUAL = [{"rms_norm_eps": 0.021}, {"hidden_act": "gelu_pytorch_tanh"}]
DELTA = {
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 10, "linear_value_head_dim": 12,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
TURNED = {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}


IN_GGUF = ("linear_values", "num_nextn_predict_layers")
"""Fields that only GGUF files fill."""


def delta_values(config):
    """Metadata of delta nets, with attention in every so many layers."""
    kinds = config["layer_types"]
    return {
        "full_attention_interval": kinds.index(FULL) + 1,
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "rope.dimension_count": int(config["head_dim"] * 0.5),
        "rope.dimension_sections": [1, 1, 0, 0],
        "feed_forward_length": config.get("intermediate_size"),
        "expert_count": config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }


def delta_names(name, values):
    """What is done to every tensor: decays as they are, taps without an axis, norms of 1 + w."""
    if name.endswith(".A_log"):
        values = -np.exp(values)
    if name.endswith("conv1d.weight"):
        values = values[:, 0]
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        values = values + np.float32(1)
    return {name.replace(".dt_bias", ".dt_proj.bias"): values}


def experts_apart(name, values):
    """Gate and up of the experts by themselves."""
    if not name.endswith("experts.gate_up_proj"):
        return {name + ".weight" * name.endswith("experts.down_proj"): values}
    stem, half = name.removesuffix("gate_up_proj"), values.shape[1] // 2
    return {f"{stem}gate_proj.weight": values[:, :half], f"{stem}up_proj.weight": values[:, half:]}


def next_tensors(config, name, values):
    """Rows of q, k, v and z apart, each of all key heads."""
    if not name.endswith("in_proj_qkvz.weight"):
        ((name, values),) = delta_names(name, values).items()
        return experts_apart(name, values)
    heads, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
    value = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    rows = values.reshape(heads, -1, values.shape[-1])
    cuts = np.split(rows, [key, 2 * key, 2 * key + value], axis=1)
    q, k, v, z = (cut.reshape(-1, values.shape[-1]) for cut in cuts)
    stem = name.removesuffix("in_proj_qkvz.weight")
    return {f"{stem}in_proj_qkv.weight": np.concatenate([q, k, v]), f"{stem}in_proj_z.weight": z}


def tiled(values, config, dim, axis=0):
    """Value heads of `dim` along an axis: the first of every key head, then the second, …"""
    heads = config["linear_num_key_heads"]
    apart = np.moveaxis(values, axis, 0)
    split = apart.reshape(heads, -1, dim, *apart.shape[1:]).swapaxes(0, 1).reshape(apart.shape)
    return np.moveaxis(split, 0, axis)


def tiled_tensors(config, name, values):
    """Value heads in another order, wherever there are rows or columns of them."""
    dim, part = config["linear_value_head_dim"], name.rpartition("linear_attn.")[2]
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        values = np.concatenate([values[:keys], tiled(values[keys:], config, dim)])
    elif part == "in_proj_z.weight":
        values = tiled(values, config, dim)
    elif part == "out_proj.weight":
        values = tiled(values, config, dim, axis=1)
    elif part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        values = tiled(values, config, 1)
    ((name, values),) = delta_names(name, values).items()
    return experts_apart(name, values)


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
        "decoder_sparse_step", "layer_types", "full_attention_interval", *IN_GGUF, "grouped_rows",
    }),
    gguf=GGUF("qwen3next", geometries=("wide",), values=delta_values, tensors=next_tensors),
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
    elsewhere=frozenset({"layer_types", "full_attention_interval", *IN_GGUF}),
    gguf=GGUF("qwen35", geometries=("wide", "odd"), values=delta_values, tensors=tiled_tensors),
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
    elsewhere=frozenset({"layer_types", "full_attention_interval", *IN_GGUF}),
    gguf=GGUF("qwen35moe", geometries=("wide", "odd"), values=delta_values, tensors=tiled_tensors),
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
    elsewhere=frozenset({"layers_block_type", "hybrid_override_pattern"}),
    required=frozenset({"layers_block_type"}),
)  # fmt: skip
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
        "wide": {"layer_types": [LINEAR, FULL]},
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
)  # fmt: skip
FAMILIES = [QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, GRANITE4, NEMOTRON_H, KIMI_LINEAR]
