"""Families with residual streams that are read through gates: declarations."""

from __future__ import annotations

from typing import ClassVar

import checkpoints
import torch
import transformers
from families_hybrid import DELTA, MROPE, USUAL
from family_harness import Family
from gguf_hybrid import LINEAR
from transformers import conversion_mapping
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.glm5_next import modeling_glm5_next as glm5

ROPE = "rope_parameters"
INDEXED = "indexed_attention"
GRAMS = {
    "ple_embed_dim": 24, "ple_conv_kernel_size": 3, "ngram_size": 3, "heads_per_ngram": 2,
    "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4,
}  # fmt: skip
INDEXER = {
    "indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 14, "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}  # fmt: skip
QWEN4_EXP = Family(
    "qwen4_exp",
    "Qwen4ExpTextConfig",
    base={
        **DELTA, **GRAMS, **INDEXER, "ngram_vocab_size_base": 50, "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20, "hc_count": 3,
        "hc_lowrank": 10, "layer_types": [LINEAR, INDEXED], "ple_layer_ids": [1],
        "eos_token_id": 3, ROPE: MROPE, "intermediate_size": ...,
    },
    shapes={
        "odd": {
            "layer_types": [LINEAR, LINEAR, INDEXED], "linear_num_key_heads": 4, "head_dim": 12,
            "ple_layer_ids": [1, 2],
        },
        "switched": {"layer_types": [INDEXED, LINEAR, LINEAR], "ple_layer_ids": [3]},
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "output_gate_type": "sigmoid",
        "norm_topk_prob": False, "seed": 7, "hc_count": 2, "eos_token_id": [5, 3],
    },
    moves=[
        *USUAL, {"num_experts_per_tok": 3}, {f"{ROPE}.partial_rotary_factor": 0.7},
        {f"{ROPE}.rope_theta": 900.0}, {"indexer_budget": 12}, {"indexer_compress_ratio": 2},
        {"indexer_n_heads": None}, {"eos_token_id": 4}, {"seed": 1235},
    ],
    sizes=(
        *DELTA, *GRAMS, "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size",
        "hc_lowrank", "indexer_head_dim", "indexer_n_heads",
    ),
    unread=("intermediate_size",),
    refused=[
        ({"indexer_kv_heads": 2}, "key heads"), ({"indexer_budget": 10}, "keys of windows"),
        ({"eos_token_id": None}, "ends a text"), ({"ngram_size": 1}, "heads of n-grams"),
    ],
    elsewhere=frozenset({  # kinds of layers; test_qwen4_exp.py
        "layer_types", "full_attention_interval", "indexer_kv_heads", "ngram_vocab_size_base",
        "ple_layer_ids",
    }),
)  # fmt: skip


class Glm5NextTextForCausalLM(glm5.Glm5NextPreTrainedModel):
    """The text model with its head, which transformers has with a tower only."""

    config: transformers.Glm5NextTextConfig
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = glm5.Glm5NextTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, ids, use_cache=False):
        return CausalLMOutput(logits=self.lm_head(self.model(ids).last_hidden_state))


checkpoints.OWN["Glm5NextTextConfig"] = Glm5NextTextForCausalLM
conversion_mapping.register_checkpoint_conversion_mapping(
    "Glm5NextTextForCausalLM",
    conversion_mapping.get_checkpoint_conversion_mapping("glm5_next"),
    overwrite=True,
)
POOLED = {
    "q_lora_rank": 14, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 0,
    "v_head_dim": 12, "index_n_heads": 8, "index_head_dim": 9, "linear_head_dim": 10,
    "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "n_routed_experts": 8,
    "moe_intermediate_size": 24,
}  # fmt: skip
GLM5_NEXT = Family(
    "glm5_next",
    "Glm5NextTextConfig",
    base={
        **POOLED, "head_dim": ..., "num_key_value_heads": 4, "index_topk": 8, "index_kpool": 4,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "pad_token_id": None,
        "hc_mult": 2, "hc_eps": 0.01, "hc_sinkhorn_iters": 3, "layer_types": [LINEAR, INDEXED],
        "mlp_layer_types": ["dense", "sparse"], "linear_lower_bound": -2.0,
    },
    shapes={
        "odd": {
            "num_hidden_layers": 5, "layer_types": None, "index_topk": 9, "index_kpool": 3,
            "mlp_layer_types": None, "linear_lower_bound": None,
        },
        "switched": {
            "num_key_value_heads": 6, "layer_types": [INDEXED, INDEXED, LINEAR],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "n_shared_experts": 2,
        "norm_topk_prob": False, "routed_scaling_factor": 1.4, "swiglu_limit": 0.8, "hc_mult": 3,
        "indexer_types": ["full", "shared", "full"], "linear_lower_bound": None,
        "index_topk": 12, "n_group": 4, "topk_group": 2,
    },
    moves=[
        {"rms_norm_eps": 0.03}, {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5},
        {"topk_group": 3}, {"hc_eps": 0.02}, {"hc_sinkhorn_iters": 2}, {"index_topk": 8},
        {"linear_lower_bound": -2.1, "linear_attn_config": ...},
        {"linear_attn_config": {"gate_lower_bound": -3.0}},
    ],
    sizes=(*(key for key, size in POOLED.items() if size), "hc_mult", "index_kpool"),
    unread=("head_dim",),
    refused=[
        ({"index_topk": 10}, "index_topk is 10, pools are of 4"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"q_lora_rank": None}, "without q_lora_rank"),
        ({"qk_rope_head_dim": 4, "head_dim": ...}, "qk_rope_head_dim = 4"),
        ({"indexer_types": ["full", "shared"]}, "layer 1, which shares a choice"),
        ({"linear_lower_bound": 0.5}, "the lower bound of decays is 0.5"),
        ({"linear_attn_config": {"gate_low_rank": 4}}, "gate_low_rank"),
    ],
    elsewhere=frozenset({
        "layer_types", "mlp_layer_types", "first_k_dense_replace", "num_nextn_predict_layers",
        "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset", "qk_head_dim",
        "qk_rope_head_dim",
    }),
)  # fmt: skip
FAMILIES = [QWEN4_EXP, GLM5_NEXT]
