"""More families with mixtures of experts, declared for `test_every_family.py`."""

from __future__ import annotations

from families_dense import LAYERS, ROPE, USUAL
from families_dense_2 import GROWING
from families_experts import (
    COUNTS,
    LATENT,
    LATENT_SHAPES,
    ROUTED,
    SIZES,
    YARN,
    deepseek_tensors,
    deepseek_values,
    expert_values,
)
from family_harness import Family
from gguf_files import GGUF
from gguf_hybrid import granite_tensors

FEW = {"num_experts": 6, "num_experts_per_tok": 2}
MULTIPLIERS = {
    "embedding_multiplier": 6.0, "attention_multiplier": 0.4, "residual_multiplier": 0.7,
    "logits_scaling": 3.0,
}  # fmt: skip
GROUPED = {"n_group": 2, "topk_group": 1}
OLMOE = Family(
    "olmoe",
    "OlmoeConfig",
    base={**FEW, "head_dim": ..., "pad_token_id": 0},
    switches={"attention_bias": True, "norm_topk_prob": True, "tie_word_embeddings": True},
    moves=[*USUAL, {"num_experts_per_tok": 3}],
    refused=[({"clip_qkv": 8.0}, "clip_qkv")],
    elsewhere=frozenset({"num_experts"}),
    gguf=[GGUF("olmoe", geometries=("wide", "odd"), values=lambda config: {
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
    })],
)  # fmt: skip
FLEX_OLMO = Family(
    "flex_olmo",
    "FlexOlmoConfig",
    base={**FEW, "head_dim": ..., "pad_token_id": 0},
    switches={"attention_bias": True, "norm_topk_prob": True, "tie_word_embeddings": True},
    moves=[*USUAL, {"num_experts_per_tok": 3}],
    elsewhere=frozenset({"num_experts"}),
)
GRANITE_MOE = Family(
    "granitemoe",
    "GraniteMoeSharedConfig",
    base={"num_local_experts": 6, "attention_multiplier": 0.25, "head_dim": ...},
    switches={
        **MULTIPLIERS, "attention_bias": True, "tie_word_embeddings": True,
        "shared_intermediate_size": 24,
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {"embedding_multiplier": 6.1},
        {"residual_multiplier": 0.71}, {"logits_scaling": 3.1},
    ],
    elsewhere=frozenset({"num_local_experts", "mlp_bias"}),
    gguf=[GGUF("granitemoe", permuted=True, tensors=granite_tensors, values=lambda config: {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"] or None,
    })],
)  # fmt: skip
MINIMAX_M2 = Family(
    "minimax_m2",
    "MiniMaxM2Config",
    base={"num_local_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0},
    switches={"tie_word_embeddings": True},
    moves=[*USUAL, {"num_experts_per_tok": 3}, {f"{ROPE}.partial_rotary_factor": 0.5}],
    elsewhere=frozenset({"num_local_experts", "rotary_dim", "attn_type_list"}),
    refused=[({"attn_type_list": [1, 0]}, "linear attention")],
    gguf=[GGUF("minimax-m2", geometries=("wide", "odd"), values=lambda config: {
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_gating_func": 2,
    })],
)  # fmt: skip
DOTS1 = Family(
    "dots1",
    "Dots1Config",
    base={**ROUTED, "n_shared_experts": 1, "sliding_window": None},
    shapes={"wide": GROUPED},
    switches={
        "n_shared_experts": 2, "attention_bias": True, "norm_topk_prob": True,
        "routed_scaling_factor": 1.4, "tie_word_embeddings": True, "n_group": 4, "topk_group": 2,
        "first_k_dense_replace": 0, "sliding_window": 9, "layer_types": LAYERS,
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5}, {"topk_group": 1},
        {"sliding_window": 10}, {"layer_types": ..., "sliding_window": 9, "max_window_layers": 1},
    ],
    elsewhere=COUNTS,
    gguf=[GGUF("dots1", geometries=("odd",), values=lambda config: {
        **expert_values(config, "n_routed_experts"),
        "expert_shared_count": config["n_shared_experts"], "expert_gating_func": 2,
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "leading_dense_block_count": config["first_k_dense_replace"],
    })],
)  # fmt: skip
ERNIE_MOE = Family(
    "ernie4_5_moe",
    "Ernie4_5_MoeConfig",
    base={
        "moe_k": 2, "moe_num_experts": 6, "moe_intermediate_size": 24,
        "moe_num_shared_experts": 1, "head_dim": ...,
    },
    switches={
        "use_bias": True, "tie_word_embeddings": True, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 0, "moe_layer_end_index": 0,
    },
    moves=[*USUAL, {"moe_k": 3}],
    elsewhere=frozenset({"moe_num_experts", "moe_intermediate_size", "moe_layer_interval"}),
    gguf=[GGUF("ernie4_5-moe", geometries=("odd",), values=lambda config: {
        "expert_count": config["moe_num_experts"], "expert_used_count": config["moe_k"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["moe_num_shared_experts"],
        "expert_shared_feed_forward_length": config["moe_intermediate_size"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
    })],
)  # fmt: skip
HUNYUAN_MOE = Family(
    "hunyuan_v1_moe",
    "HunYuanMoEV1Config",
    base={"num_experts": 6, "moe_topk": 2},
    switches={"attention_bias": True, "tie_word_embeddings": True},
    moves=[*USUAL, {"moe_topk": 3}],
    elsewhere=frozenset({
        "num_experts", "moe_intermediate_size", "num_shared_expert", "shared_inner",
    }),
    refused=[({"moe_topk": [2, 3]}, "differs by layer")],
    gguf=[GGUF("hunyuan-moe", geometries=("wide", "odd"), values=lambda config: {
        "expert_count": config["num_experts"], "expert_used_count": config["moe_topk"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_shared_feed_forward_length": config["intermediate_size"],
    })],
)  # fmt: skip
GLM_LITE = Family(
    "glm4_moe_lite",
    "Glm4MoeLiteConfig",
    base={**LATENT, **ROUTED, "q_lora_rank": 20, "first_k_dense_replace": ...},
    shapes={**LATENT_SHAPES, "wide": LATENT_SHAPES["wide"] | GROUPED},
    switches={
        "q_lora_rank": None, "n_shared_experts": 2, "attention_bias": True, "n_group": 4,
        "topk_group": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.4,
        "tie_word_embeddings": True, "rope_interleave": False,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5}, {"topk_group": 3},
    ],
    sizes=("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"),
    elsewhere=COUNTS | SIZES | {"num_nextn_predict_layers", "first_k_dense_replace"},
)  # fmt: skip
EXAONE_MOE = Family(
    "exaone_moe",
    "ExaoneMoeConfig",
    base={
        **FEW, "moe_intermediate_size": 24, "sliding_window": 9,
        "layer_types": LAYERS[:2], "mlp_layer_types": ["dense", "sparse"],
    },
    shapes={
        "wide": GROUPED,
        "odd": {"layer_types": LAYERS, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    },
    switches={
        "layer_types": LAYERS[1:] + LAYERS[1:2], "tie_word_embeddings": True,
        "num_shared_experts": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.4,
        "n_group": 3, "topk_group": 2, "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {"sliding_window": 10},
        {"routed_scaling_factor": 1.5}, {"topk_group": 1},
    ],
    elsewhere=frozenset({
        "num_experts", "moe_intermediate_size", "num_shared_experts", "first_k_dense_replace",
        "sliding_window_pattern", "num_nextn_predict_layers",
    }),
    gguf=[GGUF("exaone-moe", geometries=("wide", "odd"), values=lambda config: {
        **expert_values(config, "num_experts"),
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
        "expert_gating_func": 2, "expert_shared_count": config["num_shared_experts"],
        "expert_shared_feed_forward_length":
            config["moe_intermediate_size"] * config["num_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "nextn_predict_layers": 0, "rope.scaling.type": "none",
    })],
)  # fmt: skip


def latent_stacks(config, name, values):
    """Stacks of experts with their end."""
    end = ".weight" * name.endswith(("up_proj", "down_proj"))
    return deepseek_tensors(config, name + end, values)


STILL = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.0}
MISTRAL4 = Family(
    "mistral4",
    "Mistral4Config",
    base={**LATENT, **ROUTED, "q_lora_rank": 20, ROPE: GROWING},
    shapes={
        **LATENT_SHAPES, "wide": LATENT_SHAPES["wide"] | GROUPED,
        "odd": LATENT_SHAPES["odd"] | {ROPE: STILL},
    },
    switches={
        "q_lora_rank": None, "n_shared_experts": 2, "attention_bias": True, "n_group": 4,
        "topk_group": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.4,
        "tie_word_embeddings": True, "rope_interleave": False, "first_k_dense_replace": 0,
        ROPE: GROWING | {"rope_theta": 900.0},
    },
    moves=[
        *USUAL[:2], {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5},
        {f"{ROPE}.llama_4_scaling_beta": 0.31}, {f"{ROPE}.original_max_position_embeddings": 9},
    ],
    sizes=("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"),
    elsewhere=COUNTS | SIZES | {"num_nextn_predict_layers"},
    gguf=[GGUF("mistral4", geometries=("odd",), tensors=latent_stacks, values=lambda config: {
        **deepseek_values(config, legacy=False), "expert_weights_norm": config["norm_topk_prob"],
    })],
)  # fmt: skip
FAMILIES = [
    OLMOE, FLEX_OLMO, GRANITE_MOE, MINIMAX_M2, DOTS1, ERNIE_MOE, HUNYUAN_MOE, GLM_LITE, EXAONE_MOE,
    MISTRAL4,
]  # fmt: skip
