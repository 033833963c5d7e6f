"""Families with mixtures of experts, declared for `test_every_family.py`."""

from __future__ import annotations

import numpy as np
from family_harness import Family
from gguf_files import GGUF, head_width

ROPE = "rope_parameters"
USUAL = [{"rms_norm_eps": 0.021}, {"hidden_act": "gelu_pytorch_tanh"}, {f"{ROPE}.rope_theta": 9e3}]
"""Options of nearly every family."""
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
QWEN = {
    "norm_topk_prob": True, "mlp_only_layers": [0], "use_sliding_window": True, "sliding_window": 9,
    "tie_word_embeddings": True,
}  # fmt: skip


def expert_values(config, count):
    """Metadata of most families with experts."""
    return {
        "expert_count": config[count],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }


QWEN2_MOE = Family(
    "qwen2_moe",
    "Qwen2MoeConfig",
    base={**EXPERTS, "shared_expert_intermediate_size": 40},
    shapes={"wide": {"hidden_size": 80}, "odd": {"mlp_only_layers": [1]}},
    switches={**QWEN, "qkv_bias": False, "layer_types": SLIDING},
    moves=[
        *USUAL,
        {"num_experts_per_tok": 3},
        {"sliding_window": 10},
        {"layer_types": ["full_attention", *SLIDING[1:]]},
        {"sliding_window": 9, "layer_types": ..., "max_window_layers": 0},
    ],
    elsewhere=frozenset(
        {"num_experts", "moe_intermediate_size", "shared_expert_intermediate_size",
         "decoder_sparse_step"}
    ),
    gguf=[GGUF("qwen2moe", geometries=("wide",), values=lambda config: {
        **expert_values(config, "num_experts"),
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
    })],
)  # fmt: skip
QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeConfig",
    base={**EXPERTS, "norm_topk_prob": True},
    shapes={"odd": {"decoder_sparse_step": 2}},
    switches={**QWEN, "attention_bias": True, "norm_topk_prob": False},
    moves=[*USUAL, {"num_experts_per_tok": 3}, {"sliding_window": 10}],
    elsewhere=frozenset({"num_experts", "moe_intermediate_size", "decoder_sparse_step"}),
    gguf=[
        GGUF(
            "qwen3moe",
            geometries=("wide",),
            values=lambda config: expert_values(config, "num_local_experts"),
        )
    ],
)
GROUPS = {"n_group": 4, "topk_group": 2}
ROUTED = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}  # fmt: skip
COUNTS = frozenset({"n_routed_experts", "moe_intermediate_size", "n_shared_experts"})


def glm_values(config):
    """Metadata of GLM 4.5, of a file with a layer that drafts."""
    turned = config[ROPE].get("partial_rotary_factor", 0.5)
    return {
        **expert_values(config, "n_routed_experts"),
        "block_count": config["num_hidden_layers"] + 1, "nextn_predict_layers": 1,
        "expert_shared_count": config["n_shared_experts"], "expert_gating_func": 2,
        "expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "leading_dense_block_count": config["first_k_dense_replace"],
        "rope.dimension_count": int(head_width(config) * turned),
    }  # fmt: skip


def glm_draft(config):
    """Tensors of the layer that drafts."""
    last = config["num_hidden_layers"]
    names = (f"blk.{last}.{end}.weight" for end in ("nextn.eh_proj", "attn_norm"))
    return {name: np.ones(32, np.float32) for name in names}


GLM4_MOE = Family(
    "glm4_moe",
    "Glm4MoeConfig",
    base=ROUTED,
    shapes={"wide": {"n_group": 2, "topk_group": 1}, "odd": {"head_dim": 12}},
    switches={
        **GROUPS, "n_shared_experts": 2, "attention_bias": True, "use_qk_norm": True,
        "norm_topk_prob": False, "routed_scaling_factor": 1.4, "tie_word_embeddings": True,
        "first_k_dense_replace": 2,
    },
    moves=[
        *USUAL,
        {"num_experts_per_tok": 3},
        {"routed_scaling_factor": 1.5},
        {"topk_group": 3},
        {f"{ROPE}.partial_rotary_factor": 1.0},
    ],
    elsewhere=COUNTS | {"num_nextn_predict_layers"},
    gguf=[GGUF("glm4moe", values=glm_values, extra=glm_draft)],
)  # fmt: skip
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12}
HEADS = {
    "wide": {"num_key_value_heads": 4}, "odd": {"num_key_value_heads": 4},
    "switched": {"num_key_value_heads": 6},
}  # fmt: skip
LATENT_SHAPES = {name: {**heads, "head_dim": ...} for name, heads in HEADS.items()}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SIZES = frozenset(LATENT) | {"qk_head_dim", "q_lora_rank"}


def deepseek_values(config, legacy):
    """Metadata of both versions; older files hold kv_b whole and the sizes of a head."""
    nope, turned = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    rope, latent = config[ROPE], config["kv_lora_rank"]
    key, value = nope + turned, config["v_head_dim"]
    v3 = config["model_type"] not in ("deepseek_v2", "mistral4")
    values = {
        **expert_values(config, "n_routed_experts"),
        "attention.head_count_kv": config["num_attention_heads"] if legacy else 1,
        "attention.key_length": key if legacy else latent + turned,
        "attention.value_length": value if legacy else latent,
        "attention.key_length_mla": None if legacy else key,
        "attention.value_length_mla": None if legacy else value,
        "attention.kv_lora_rank": latent, "attention.q_lora_rank": config["q_lora_rank"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_gating_func": 2 if v3 else 1,
        "expert_weights_norm": bool(config["norm_topk_prob"]) if v3 else None,
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "leading_dense_block_count": config["first_k_dense_replace"],
        "rope.dimension_count": turned,
        "rope.scaling.yarn_log_multiplier": rope["mscale"] / 10 if "mscale" in rope else None,
    }  # fmt: skip
    if v3:
        values["expert_group_count"] = config["n_group"]
        values["expert_group_used_count"] = config["topk_group"]
    return values


def deepseek_tensors(config, name, values):
    """kv_b as newer files hold it: the keys' part turned, the values' part, both by head."""
    if not name.endswith("kv_b_proj.weight"):
        return {name: values}
    nope = config["qk_nope_head_dim"]
    heads = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
    keys = np.ascontiguousarray(heads[:, :nope].swapaxes(1, 2))
    return {
        name.replace("kv_b_proj", "k_b_proj"): keys,
        name.replace("kv_b_proj", "v_b_proj"): np.ascontiguousarray(heads[:, nope:]),
    }


DEEPSEEK_V2 = Family(
    "deepseek_v2",
    "DeepseekV2Config",
    base={**ROUTED, **LATENT, "q_lora_rank": None},
    shapes=LATENT_SHAPES,
    switches={
        **GROUPS, "num_experts_per_tok": 3, "topk_method": "group_limited_greedy",
        "q_lora_rank": 14, "attention_bias": True, "mlp_bias": True,
        "n_shared_experts": 1, "routed_scaling_factor": 1.4, "tie_word_embeddings": True,
        "first_k_dense_replace": 0, ROPE: YARN,
    },
    moves=[
        *USUAL,
        {"num_experts_per_tok": 4},
        {"routed_scaling_factor": 1.5},
        {"topk_group": 3},
        {f"{ROPE}.mscale_all_dim": 1.2},
        {f"{ROPE}.mscale": 0.8},
    ],
    refused=[({"topk_method": "loudest"}, "loudest"), ({"norm_topk_prob": True}, "norm_topk_prob")],
    elsewhere=COUNTS | SIZES,
    gguf=[GGUF(
        "deepseek2", geometries=("wide", "odd"),
        values=lambda config: deepseek_values(config, legacy=True),
    )],
)  # fmt: skip
DEEPSEEK_V3 = Family(
    "deepseek_v3",
    "DeepseekV3Config",
    base={**ROUTED, **LATENT, "q_lora_rank": 14, "n_group": 2, "topk_group": 1},
    shapes=LATENT_SHAPES | {"odd": {**LATENT_SHAPES["odd"], ROPE: YARN | {"mscale": 1.3}}},
    switches={
        **GROUPS, "q_lora_rank": None, "attention_bias": True, "rope_interleave": False,
        "n_shared_experts": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.4,
        "tie_word_embeddings": True, "first_k_dense_replace": 0, ROPE: YARN,
    },
    moves=[
        *USUAL,
        {"num_experts_per_tok": 3},
        {"routed_scaling_factor": 1.5},
        {"topk_group": 3},
        {f"{ROPE}.mscale_all_dim": 1.2},
    ],
    refused=[({"scoring_func": "softmax"}, "scoring_func")],
    elsewhere=COUNTS | SIZES | {"num_nextn_predict_layers"},
    gguf=[GGUF(
        "deepseek2", geometries=("wide", "odd"), tensors=deepseek_tensors,
        values=lambda config: deepseek_values(config, legacy=False),
    )],
)  # fmt: skip
CONVS = ["conv", "full_attention", "conv"]


def lfm2_values(config):
    """Metadata of LFM2 MoE: KV heads by layer."""
    heads = config["num_key_value_heads"]
    return {
        **expert_values(config, "num_experts"),
        "attention.head_count_kv": [heads * (k != "conv") for k in config["layer_types"]],
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "expert_gating_func": 2,
        "leading_dense_block_count": config["num_dense_layers"],
        "shortconv.l_cache": config["conv_L_cache"],
    }


def lfm2_tensors(config, name, values):
    """The bias of the choice has a name of its own."""
    return {name.replace(".expert_bias", ".expert_bias.bias"): values}


LFM2_MOE = Family(
    "lfm2_moe",
    "Lfm2MoeConfig",
    base={
        **EXPERTS, "num_dense_layers": 1, "rms_norm_eps": ..., "norm_eps": 0.02,
        "layer_types": CONVS[:2], "tie_word_embeddings": True,
    },
    shapes={"wide": {"head_dim": ..., "hidden_size": 40}, "odd": {"layer_types": CONVS},
            "switched": {"head_dim": 8, "hidden_size": 48}},
    switches={
        "conv_bias": True, "conv_L_cache": 4, "norm_topk_prob": False, "use_expert_bias": False,
        "routed_scaling_factor": 1.4, "num_dense_layers": 0, "tie_word_embeddings": False,
        "layer_types": CONVS[::-1][:1] + CONVS[1:],
    },
    moves=[
        {"norm_eps": 0.021},
        {f"{ROPE}.rope_theta": 9e5},
        {"num_experts_per_tok": 3},
        {"routed_scaling_factor": 1.5},
    ],
    elsewhere=frozenset({"num_experts", "moe_intermediate_size", "kv_heads_of_layers"}),
    required=frozenset({"layer_types"}),
    gguf=[GGUF("lfm2moe", geometries=("wide", "odd"), tensors=lfm2_tensors, values=lfm2_values)],
)  # fmt: skip
OSS_YARN = {
    "rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "beta_fast": 6.0, "beta_slow": 0.5,
    "truncate": False, "original_max_position_embeddings": 64,
}  # fmt: skip


def oss_tensors(config, name, values):
    """Gate and up apart, matrices as the others lie, names with their ends."""
    layer, _, role = name.rpartition(".")
    if role in ("gate_up_proj", "down_proj"):
        values = np.ascontiguousarray(values.swapaxes(-1, -2))
    if role == "down_proj":
        return {f"{name}.weight": values}
    if role == "down_proj_bias":
        return {f"{layer}.down_proj.bias": values}
    if role.startswith("gate_up_proj"):
        end = "bias" if role.endswith("bias") else "weight"
        return {
            f"{layer}.gate_proj.{end}": values[:, 0::2],
            f"{layer}.up_proj.{end}": values[:, 1::2],
        }
    return {f"{name}.weight" if role == "sinks" else name: values}


GPT_OSS = Family(
    "gpt_oss",
    "GptOssConfig",
    base={
        "num_local_experts": 5, "num_experts_per_tok": 2, "swiglu_limit": 0.9,
        "sliding_window": 12, "layer_types": SLIDING[:2], ROPE: OSS_YARN,
    },
    shapes={
        "odd": {"layer_types": SLIDING, "swiglu_limit": 7.0},  # as GGUF files imply
        "switched": {"layer_types": SLIDING},
    },
    switches={"attention_bias": False, "tie_word_embeddings": True},
    moves=[
        {"rms_norm_eps": 0.021},
        {"num_experts_per_tok": 3},
        {"swiglu_limit": 0.8},
        {"swiglu_alpha": 1.6},
        {"sliding_window": 11},
        {"layer_types": SLIDING[1:]},
        {f"{ROPE}.truncate": True},
        {f"{ROPE}.factor": 4.2},
    ],
    elsewhere=frozenset({"num_local_experts", "expert_width"}),
    gguf=[GGUF("gpt-oss", geometries=("odd",), tensors=oss_tensors, values=lambda config: {
        "attention.sliding_window": config["sliding_window"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
    })],
)  # fmt: skip
FAMILIES = [GPT_OSS, QWEN2_MOE, QWEN3_MOE, GLM4_MOE, DEEPSEEK_V2, DEEPSEEK_V3, LFM2_MOE]
