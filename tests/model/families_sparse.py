"""Families whose queries choose keys, declared for `test_every_family.py`."""

from __future__ import annotations

from families_dense import ROPE, USUAL
from families_experts import COUNTS, LATENT, LATENT_SHAPES, ROUTED, SIZES, YARN
from family_harness import Family

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
SHAPES = {**LATENT_SHAPES, "wide": LATENT_SHAPES["wide"] | GROUPED}
DEEPSEEK_V32 = Family(
    "deepseek_v32",
    "DeepseekV32Config",
    base=BASE,
    shapes=SHAPES | {"odd": {**LATENT_SHAPES["odd"], **GROUPED, ROPE: YARN}},
    switches=SPARSE_SWITCHES,
    moves=MOVES,
    sizes=SIZED,
    elsewhere=ELSEWHERE,
    refused=[*REFUSED, ({"indexer_rope_interleave": True}, "indexer_rope_interleave")],
)
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
)
FAMILIES = [DEEPSEEK_V32, GLM_DSA]
