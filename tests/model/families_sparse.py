"""Families whose queries choose keys, declared for `test_every_family.py`."""

from __future__ import annotations

from families_dense import ROPE, USUAL
from families_experts import (
    COUNTS,
    LATENT,
    LATENT_SHAPES,
    ROUTED,
    SIZES,
    YARN,
    deepseek_tensors,
    deepseek_values,
)
from family_harness import Family
from gguf_files import GGUF

INDEXED = {"q_lora_rank": 14, "index_n_heads": 8, "index_head_dim": 9, "index_topk": 7}
SPARSE_SWITCHES = {
    "n_group": 4, "topk_group": 2, "attention_bias": True, "n_shared_experts": 2,
    "norm_topk_prob": False, "routed_scaling_factor": 1.4, "tie_word_embeddings": True,
    "index_topk": 9, "mlp_layer_types": ["sparse", "dense", "sparse"],
}  # fmt: skip
MOVES = [
    *USUAL, {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5}, {"topk_group": 3},
    {"index_topk": 10},
]  # fmt: skip
SIZED = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim",
         "index_n_heads", "index_head_dim")  # fmt: skip
ELSEWHERE = COUNTS | SIZES | {
    "num_nextn_predict_layers", "first_k_dense_replace", "rope_interleave", "layer_types",
}  # fmt: skip
REFUSED = [
    ({"scoring_func": "softmax"}, "scoring_func"),
    ({"q_lora_rank": None}, "without q_lora_rank"),
    ({"index_head_dim": 4}, "index_head_dim = 4, less than is turned"),
    ({"rope_interleave": False}, "rope_interleave = False"),
]
GROUPED = {"n_group": 2, "topk_group": 1}
BASE = {**LATENT, **ROUTED, **INDEXED}
UNITS = {"mscale": 1.0, "mscale_all_dim": 1.0}
PARTS = {
    "wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj",
}  # fmt: skip


def indexed_values(config):
    """Metadata of DeepSeek V3.2 and GLM 5."""
    kinds = config.get("indexer_types")
    return deepseek_values(config, legacy=False) | {
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "attention.indexer.types": kinds and [kind == "full" for kind in kinds],
    }


def indexed_tensors(config, name, values):
    """Tensors of indexers under the names that the package does not know yet."""
    layer, _, part = name.partition(".self_attn.indexer.")
    if not part:
        return deepseek_tensors(config, name, values)
    tensor, _, end = part.rpartition(".")
    return {f"blk.{layer.rpartition('.')[2]}.indexer.{PARTS[tensor]}.{end}": values}


SHAPES = {**LATENT_SHAPES, "wide": LATENT_SHAPES["wide"] | GROUPED}
DEEPSEEK_V32 = Family(
    "deepseek_v32",
    "DeepseekV32Config",
    base=BASE,
    shapes=SHAPES | {"odd": {**LATENT_SHAPES["odd"], **GROUPED, ROPE: YARN | UNITS}},
    switches=SPARSE_SWITCHES,
    moves=MOVES,
    sizes=SIZED,
    elsewhere=ELSEWHERE,
    refused=[*REFUSED, ({"indexer_rope_interleave": True}, "indexer_rope_interleave")],
    gguf=[GGUF(
        "deepseek32", names="glm-dsa", geometries=("wide", "odd"), values=indexed_values,
        tensors=indexed_tensors,
    )],
)  # fmt: skip
GLM_DSA = Family(
    "glm_moe_dsa",
    "GlmMoeDsaConfig",
    base=BASE,
    shapes=SHAPES | {"odd": {**LATENT_SHAPES["odd"], "indexer_types": ["full", "shared", "full"]}},
    switches={**SPARSE_SWITCHES, "indexer_types": ["full", "full", "shared"]},
    moves=MOVES,
    sizes=SIZED,
    elsewhere=ELSEWHERE | {"index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"},
    refused=[
        *REFUSED,
        ({"indexer_rope_interleave": False}, "indexer_rope_interleave"),
        ({"indexer_types": ["shared", "full"]}, "a first layer that shares"),
    ],
    gguf=[GGUF(
        "glm-dsa", geometries=("wide", "odd"), values=indexed_values, tensors=indexed_tensors,
    )],
)  # fmt: skip
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
NEAR = "sliding_attention"
COMPRESSED = {
    "num_key_value_heads": 1, "q_lora_rank": 14, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "intermediate_size": 24, "compress_rates": {SPARSE: 2, HEAVY: 4}, "sliding_window": 6,
    "layer_types": [SPARSE, HEAVY], "mlp_layer_types": ["hash_moe", "moe"], "o_groups": 2,
    "o_lora_rank": 10, "index_n_heads": 8, "index_head_dim": 12, "index_topk": 3, "hc_eps": 0.01,
    "partial_rotary_factor": 0.4, "hc_sinkhorn_iters": 3,
}  # fmt: skip
THREE = {"layer_types": [NEAR, SPARSE, SPARSE], "mlp_layer_types": ["hash_moe", "hash_moe", "moe"]}
DEEPSEEK_V4 = Family(
    "deepseek_v4",
    "DeepseekV4Config",
    base=COMPRESSED,
    shapes={"odd": THREE | {ROPE: YARN}, "switched": {"partial_rotary_factor": 0.5}},
    switches={
        "tie_word_embeddings": True, "layer_types": [HEAVY, NEAR, SPARSE], "hc_mult": 3,
        "mlp_layer_types": ["moe", "hash_moe", "moe"], "swiglu_limit": 0.8, "index_topk": 4,
        "routed_scaling_factor": 1.4, "hc_sinkhorn_iters": 2, "sliding_window": 5,
    },
    moves=[
        {"rms_norm_eps": 0.03}, {"hc_eps": 0.02}, {"index_topk": 5},
        {"layer_types": [HEAVY, NEAR, SPARSE], "rope_parameters.main.rope_theta": 9e3},
        {"rope_parameters.compress.rope_theta": 9e3},
    ],
    sizes=("q_lora_rank", "n_routed_experts", "num_experts_per_tok", "o_groups", "o_lora_rank",
           "index_n_heads", "index_head_dim", "hc_mult"),
    elsewhere=frozenset({
        "num_nextn_predict_layers", "num_hash_layers", "compress_ratios", "compress_rates",
        "compress_rope_theta", "qk_rope_head_dim", "dspark_block_size", "dspark_markov_rank",
        "dspark_noise_token_id", "dspark_target_layer_ids",
    }),
    refused=[
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"compress_rates": {SPARSE: 1}}, "compress_rates has 1"),
        ({"qk_rope_head_dim": 4}, "qk_rope_head_dim is 4"),
    ],
)  # fmt: skip
FAMILIES = [DEEPSEEK_V32, GLM_DSA, DEEPSEEK_V4]
