"""Configurations of models that were published with draft heads: every key known, and the trunk."""

from __future__ import annotations

import re

import pytest

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.models.config import config_from_json
from cortiq.models.head_names import find_plan
from cortiq.models.registry import families

COMMON = {
    "architectures": ["X"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "pad_token_id": None,
    "tie_word_embeddings": False, "transformers_version": "4.57.1", "use_cache": True,
}  # fmt: skip
DELTA = {
    "full_attention_interval": 4, "head_dim": 256, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
}  # fmt: skip
QWEN3_NEXT = {
    **DELTA, "model_type": "qwen3_next", "decoder_sparse_step": 1, "hidden_size": 2048,
    "intermediate_size": 5120, "linear_num_value_heads": 32, "mlp_only_layers": [],
    "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16,
    "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "output_router_logits": False, "rope_scaling": None,
    "rope_theta": 10000000, "router_aux_loss_coef": 0.001, "torch_dtype": "bfloat16",
    "shared_expert_intermediate_size": 512, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_5 = {  # the text model of Qwen3.6-27B
    **DELTA, "model_type": "qwen3_5_text", "attn_output_gate": True, "dtype": "bfloat16",
    "hidden_size": 5120, "intermediate_size": 17408, "linear_num_value_heads": 48,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 16,
    "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False, "num_attention_heads": 24, "num_hidden_layers": 64,
    "num_key_value_heads": 4, "output_gate_type": "swish", "vocab_size": 248320,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
        "rope_theta": 10000000, "rope_type": "default",
    },
}  # fmt: skip
QWEN3_5_MOE = {
    **{k: v for k, v in QWEN3_5.items() if k not in ("intermediate_size", "output_gate_type")},
    "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "linear_num_value_heads": 32,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10, "num_hidden_layers": 40,
    "mlp_only_layers": [], "moe_intermediate_size": 512, "num_attention_heads": 16,
    "num_experts": 256, "num_experts_per_tok": 8, "num_key_value_heads": 2,
    "output_router_logits": False, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
GLM4_MOE = {  # GLM-4.5-Air
    "model_type": "glm4_moe", "attention_bias": True, "first_k_dense_replace": 1, "head_dim": 128,
    "hidden_size": 4096, "intermediate_size": 10944, "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 96, "num_experts_per_tok": 8,
    "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 1000000, "routed_scaling_factor": 1.0, "topk_group": 1,
    "torch_dtype": "bfloat16", "use_qk_norm": False, "vocab_size": 151552,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "auto_map": {"AutoConfig": "a.B"}, "aux_loss_alpha": 0.001,
    "ep_size": 1, "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "scoring_func": "sigmoid", "seq_aux": True, "topk_group": 4, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
NEMOTRON_H = {
    "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 2688, "head_dim": 128,
    "intermediate_size": 1856, "num_attention_heads": 32, "num_key_value_heads": 2,
    "hybrid_override_pattern": "MEM*EM", "num_hidden_layers": 6, "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E", "mtp_layers_block_type": ["attention", "moe"],
}  # fmt: skip
PUBLISHED = [QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, GLM4_MOE, DEEPSEEK_V3, NEMOTRON_H]


def read(values):
    family, given = families()[values["model_type"]], COMMON | values
    if values is NEMOTRON_H:
        del given["hidden_act"]
    return family, config_from_json(family.Config, family.KEYS, given, where="config")


@pytest.mark.parametrize("values", PUBLISHED, ids=lambda values: values["model_type"])
def test_the_trunk_has_the_layers_that_the_config_counts(values):
    family, config = read(values)
    program = family.build(config, 64)
    assert isinstance(program, Program)
    assert program.facts["layers"] == values["num_hidden_layers"]
    assert find_plan("auto", config.num_hidden_layers, lambda name: False) is None


@pytest.mark.parametrize(
    ("values", "key", "value"),
    [
        (QWEN3_5, "attn_output_gate", False), (QWEN3_5, "output_gate_type", "sigmoid"),
        (QWEN3_5, "mlp_only_layers", [2]), (QWEN3_NEXT, "use_sliding_window", True),
        (QWEN3_5_MOE, "attn_output_gate", False),
    ],
)  # fmt: skip
def test_what_would_be_another_graph_is_refused(values, key, value):
    with pytest.raises(UnsupportedError, match=re.escape(f"{key} = {value!r}")):
        read(values | {key: value})


def test_a_table_of_the_head_s_own_is_its_module_s():
    names = {"mtp.fc.weight", "mtp.embed_tokens.weight"}
    (module,) = find_plan("mtp", 4, names.__contains__).modules
    (plain,) = find_plan("mtp", 4, {"mtp.fc.weight"}.__contains__).modules
    assert (module.table, plain.table) == ("mtp.embed_tokens", "")
