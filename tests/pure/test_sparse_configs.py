"""Published configurations of models with sparse attention: the graphs, and their sizes."""

from __future__ import annotations

from math import prod

import pytest

from cortiq.ir.layers import KeyIndexer, LatentAttention
from cortiq.models.config import config_from_json
from cortiq.models.registry import families

SHARED = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
    "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "index_head_dim": 128,
    "index_topk": 2048, "initializer_range": 0.02, "kv_lora_rank": 512,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1, "qk_rope_head_dim": 64, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "transformers_version": "5.0.0", "use_cache": True,
}  # fmt: skip
DEEPSEEK_V32 = SHARED | {
    "model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"],
    "hidden_size": 7168, "index_n_heads": 64, "intermediate_size": 18432,
    "max_position_embeddings": 163840, "n_group": 8, "num_attention_heads": 128,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "rms_norm_eps": 1e-06, "rope_theta": 10000, "topk_group": 4,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
GLM_5 = SHARED | {
    "model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"], "head_dim": 64,
    "hidden_size": 6144, "index_n_heads": 32, "indexer_rope_interleave": True,
    "intermediate_size": 12288, "max_position_embeddings": 202752, "n_group": 1,
    "num_attention_heads": 64, "num_hidden_layers": 78, "num_key_value_heads": 64,
    "q_lora_rank": 2048, "qk_head_dim": 256, "qk_nope_head_dim": 192, "rms_norm_eps": 1e-05,
    "rope_interleave": True, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "topk_group": 1, "v_head_dim": 256, "vocab_size": 154880,
}  # fmt: skip
HY_4 = {
    "model_type": "hy_v4", "architectures": ["HYV4ForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 120000, "enable_ihc": True,
    "enable_lm_head_fp32": True, "eos_token_id": 120025, "gated_mla": True,
    "gating_type": "elementwise", "hc_eps": 1e-06, "hc_magnitude": 2.0, "hc_mult": 4,
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 6144, "index_head_dim": 128,
    "index_n_heads": 32, "index_topk": 2048, "initializer_range": 0.006,
    "intermediate_size": 18432, "kv_lora_rank": 512,
    "layer_types": ["deepseek_sparse_attention"] * 78, "learnable_sink": True,
    "learnable_sink_init": 0.0, "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048, "mtp_loss_factor": 0.1, "n_group": 1,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78,
    "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "pad_token_id": 120002,
    "q_lora_rank": 2048, "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
    "routed_scaling_factor": 2.827, "swiglu_limit": 10.0, "tie_word_embeddings": False,
    "topk_group": 1, "use_dsa": True, "use_mla": True, "v_head_dim": 256, "vocab_size": 120832,
}  # fmt: skip
MISTRAL_LARGE_4 = {
    "model_type": "mistral_large4_text", "attention_bias": False, "final_logit_softcapping": 30.0,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 6144, "index_head_dim": 128,
    "index_n_heads": 32, "index_topk": 2048, "intermediate_size": 24576, "kv_lora_rank": 512,
    "kv_source_layers": [35 if n > 35 and n % 4 == 3 else n for n in range(72)],
    "max_position_embeddings": 1048576, "moe_intermediate_size": 6144, "n_group": 1,
    "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 72, "num_key_value_heads": 64,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "routed_scaling_factor": 1.0, "tie_word_embeddings": False, "topk_group": 1,
    "v_head_dim": 128, "vocab_size": 204800,
}  # fmt: skip
"""Sizes of transformers' classes; the layers that share rows, as github.com/JustVugg/colibri says."""
GLM_52 = GLM_5 | {"index_topk_freq": 4, "index_skip_topk_offset": 2}


def built(values, context=None):
    """The graph of a configuration."""
    family = families()[values["model_type"]]
    config = config_from_json(family.Config, family.KEYS, values, where="config.json")
    return family.build(config, context or config.max_position_embeddings)


@pytest.mark.parametrize(
    ("values", "billions", "indexers"),
    [
        (DEEPSEEK_V32, 671, 61),
        (GLM_5, 744, 78),
        (GLM_52, 744, 21),
        (HY_4, 770, 21),
        (MISTRAL_LARGE_4, 1050, 72),
    ],
    ids=["DeepSeek-V3.2", "GLM-5", "GLM-5.2", "Hy4", "Mistral-Large-4"],
)
def test_a_published_configuration_has_its_published_size(values, billions, indexers):
    """Without the layer that drafts; layers without an indexer of their own share one's choice."""
    program = built(values)
    count = sum(prod(spec.shape) for spec in program.weights.values())
    assert count == pytest.approx(billions * 1e9, rel=0.01)
    kinds = [type(node.op) for node in program.trunk.nodes]
    assert kinds.count(KeyIndexer) == indexers
    assert kinds.count(LatentAttention) == values["num_hidden_layers"]


def test_within_the_chosen_keys_there_is_no_indexer():
    kinds = {type(node.op) for node in built(DEEPSEEK_V32, 2048).trunk.nodes}
    assert KeyIndexer not in kinds
    assert KeyIndexer in {type(node.op) for node in built(DEEPSEEK_V32, 2049).trunk.nodes}


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"index_topk_freq": 2}, {"index_topk_freq": 3, "index_skip_topk_offset": 4},
        {"index_topk_pattern": "FSSFFS", "index_topk_freq": 2},
        {"indexer_types": ["full", "shared"] * 3, "index_topk_freq": 1},
    ],
)  # fmt: skip
def test_layers_with_an_indexer_are_those_of_transformers(changes):
    transformers = pytest.importorskip("transformers")
    layers = {"num_hidden_layers": 6, **changes}
    family = families()["glm_moe_dsa"]
    config = config_from_json(family.Config, family.KEYS, GLM_5 | layers, where="config.json")
    ours = ["full" if full else "shared" for full in config.indexed()]
    assert ours == transformers.GlmMoeDsaConfig(**layers).indexer_types
