"""More families of experts with kinds of layers, for `test_every_family.py`."""

from __future__ import annotations

from families_dense import ORIGINAL, USUAL, phi3_factors
from families_experts import COUNTS, GROUPS, ROUTED
from families_mixed import LAYERS, ROPE, by_kind
from family_harness import Family
from gguf_files import GGUF, head_width


def mellum_values(config):
    """Metadata of Mellum."""
    kinds = config[ROPE]
    return {
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
        "rope.freq_base_swa": kinds["sliding_attention"]["rope_theta"],
    }  # fmt: skip


MELLUM = Family(
    "mellum",
    "MellumConfig",
    base={
        "sliding_window": 9, "moe_intermediate_size": 24, "num_experts": 4,
        "num_experts_per_tok": 2, ROPE: by_kind(1e3, 300.0, 1.0),
    },
    shapes={"wide": {"layer_types": LAYERS[:2]}, "odd": {
        "layer_types": LAYERS, "mlp_layer_types": ["dense", "sparse", "sparse"],
    }},
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "norm_topk_prob": False,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"], ROPE: by_kind(800.0, 500.0, 1.0),
    },
    moves=[
        *USUAL[:2], {"sliding_window": 10}, {"num_experts_per_tok": 3},
        {f"{ROPE}.full_attention.rope_theta": 700.0},
        {f"{ROPE}.sliding_attention.rope_theta": 400.0},
    ],
    sizes=("moe_intermediate_size", "num_experts"),
    elsewhere=frozenset({"num_mtp_layers"}),
    gguf=[GGUF("mellum", names="qwen3moe", geometries=("wide",), values=mellum_values)],
)  # fmt: skip
SARVAM = Family(
    "sarvam_moe",
    "SarvamMoEConfig",
    base={**ROUTED, "pad_token_id": None},
    shapes={"wide": {"n_group": 2, "topk_group": 1}, "odd": {"head_dim": 12}},
    switches={
        **GROUPS, "n_shared_experts": 2, "attention_bias": True, "use_qk_norm": False,
        "norm_topk_prob": False, "routed_scaling_factor": 1.4, "tie_word_embeddings": True,
        "first_k_dense_replace": 2,
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5}, {"topk_group": 3},
        {f"{ROPE}.partial_rotary_factor": 0.5},
    ],
    elsewhere=COUNTS | {"num_nextn_predict_layers"},
)  # fmt: skip


def cohere_values(config):
    """Metadata of Command A+."""
    kinds = config["layer_types"]
    eps = {"attention.layer_norm_epsilon": config["layer_norm_eps"]}
    return {
        **(eps if config["rms_norm_eps"] is None else {}), "logit_scale": config["logit_scale"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "feed_forward_length": config["prefix_dense_intermediate_size"],
        "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"], "expert_gating_func": 2,
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_shared_feed_forward_length":
            config["intermediate_size"] * config["num_shared_experts"],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "rope.scaling.type": "none",
    }  # fmt: skip


COHERE2_MOE = Family(
    "cohere2_moe",
    "Cohere2MoeConfig",
    base={
        "rms_norm_eps": ..., "layer_norm_eps": 0.02, "sliding_window": 9, "pad_token_id": 0,
        "eos_token_id": 1, "num_experts": 4, "num_shared_experts": 1, "logit_scale": 0.5,
        "mlp_layer_types": ["dense", "sparse"], "layer_types": LAYERS[:2],
        "prefix_dense_intermediate_size": 56, "rope_theta": 1e3,
    },
    shapes={"odd": {
        "rms_norm_eps": 0.02, "layer_types": ["full_attention", *LAYERS[1:]],
        "mlp_layer_types": ["dense", "dense", "sparse"], "expert_selection_fn": "sigmoid",
    }},
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "logit_scale": 0.3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"], "num_shared_experts": 2,
        "shared_expert_combination_strategy": "sum", "expert_selection_fn": "sigmoid",
        "norm_topk_prob": False, "prefix_dense_sliding_window_pattern": 2,
        "prefix_dense_intermediate_size": 40,
    },
    moves=[
        {"layer_norm_eps": 0.03}, {"rms_norm_eps": 0.02}, {"hidden_act": "gelu_pytorch_tanh"},
        {f"{ROPE}.rope_theta": 9e2, "rope_theta": 9e2}, {"logit_scale": 0.31},
        {"sliding_window": 10},
        {"num_experts_per_tok": 1}, {"shared_expert_combination_strategy": "average"},
        {"expert_selection_fn": "softmax"}, {"prefix_dense_sliding_window_pattern": 1},
        {"norm_topk_prob": True},
    ],
    sizes=("num_experts", "num_shared_experts", "prefix_dense_intermediate_size"),
    elsewhere=frozenset({
        "first_k_dense_replace", "num_nextn_predict_layers", "sliding_window_pattern",
    }),
    refused=[
        ({"use_parallel_block": False}, "use_parallel_block"),
        ({"expert_selection_fn": "loudest"}, "loudest"),
        ({"shared_expert_combination_strategy": "product"}, "product"),
    ],
    gguf=[GGUF("cohere2moe", names="dots1", geometries=("odd",), values=cohere_values)],
)  # fmt: skip
AMPLIFIED = {
    "rope_type": "longrope", "rope_theta": 1e3, "original_max_position_embeddings": 16,
    "short_factor": [1.0, 1.5, 3.0, 4.0], "long_factor": [1.0, 1.5, 3.0, 4.0],
    "short_mscale": 1.1, "long_mscale": 1.3,
}  # fmt: skip
"""Lists that are alike: transformers 5.24 divides by the short one whatever the length, though its
amplitude, and its releases before 5, follow the length."""


def phimoe_values(config):
    """Metadata of Phi 3.5 MoE; the amplitude is that of the long list."""
    long = config[ROPE]["rope_type"] == "longrope"
    return {
        "expert_count": config["num_local_experts"], "expert_used_count": 2,
        "attention.sliding_window": config["sliding_window"] or 0,
        "rope.dimension_count": head_width(config),
        "rope.scaling.original_context_length": config[ROPE].get(ORIGINAL),
        "rope.scaling.attn_factor": config[ROPE]["long_mscale"] if long else None,
    }  # fmt: skip


PHIMOE = Family(
    "phimoe",
    "PhimoeConfig",
    base={"num_local_experts": 8, "router_jitter_noise": 0.3},
    shapes={"odd": {"router_jitter_noise": 0.01}},  # what files mean, which do not say it
    switches={
        "attention_bias": True, "lm_head_bias": True, "sliding_window": 9,
        "tie_word_embeddings": True, "router_jitter_noise": 0.1, ROPE: AMPLIFIED,
    },
    moves=[
        *USUAL, {"sliding_window": 10}, {"router_jitter_noise": 0.5},
        {f"{ROPE}.long_mscale": 1.31}, {f"{ROPE}.long_factor": [1.0, 1.6, 3.0, 4.0]},
    ],
    sizes=("num_local_experts",),
    refused=[({"num_experts_per_tok": 3}, "num_experts_per_tok")],
    gguf=[GGUF("phimoe", values=phimoe_values, extra=phi3_factors, geometries=("odd",))],
)  # fmt: skip
FAMILIES = [MELLUM, SARVAM, COHERE2_MOE, PHIMOE]
