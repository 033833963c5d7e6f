"""Configurations of the models by formula, as config.json would hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VOCABULARY = 320
"""Tokens of the tiny models: bytes, BOS, EOS, and some more."""
_TINY = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 4096,
}  # fmt: skip

_MINI = _TINY | {"num_hidden_layers": 2}
_WITHOUT_HEAD = {k: v for k, v in _MINI.items() if k != "head_dim"}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SHARED = _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 32}
_ROUTED = _EXPERTS | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}
_LATENT = _WITHOUT_HEAD | {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip
_CHOSEN = _ROUTED | {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 24}
_INDEXED = _CHOSEN | {"first_k_dense_replace": 1}
_HYBRID = ["linear_attention", "full_attention"]
_LINEAR = {
    "layer_types": _HYBRID, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
_GROWING = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_KINDS = ["sliding_attention", "full_attention"]
_WINDOWS = {"sliding_window": 24, "layer_types": _KINDS}

# New ones go to the end: the conformance kit gives these models layouts in turn.
MINI: Mapping[str, Mapping[str, Any]] = {
    "qwen2": _MINI | {"use_sliding_window": True, **_WINDOWS},
    "qwen3": _MINI,
    "phi3": _WITHOUT_HEAD | {"sliding_window": 24},
    "smollm3": _MINI | {"no_rope_layers": [1, 0]},
    "olmo2": _MINI,
    "granite": _MINI | {"attention_multiplier": 0.3, "residual_multiplier": 0.7},
    "gemma2": _MINI | {"query_pre_attn_scalar": 16, "sliding_window": 24},
    "hunyuan_v1_dense": _MINI,
    "starcoder2": _WITHOUT_HEAD | {"sliding_window": 24},
    "minicpm3": _LATENT,
    "qwen2_moe": _MINI | _SHARED,
    "qwen3_moe": _MINI | _EXPERTS | {"num_experts": 4, "norm_topk_prob": True},
    "glm4_moe": _MINI | _ROUTED | {"use_qk_norm": True},
    "deepseek_v2": _LATENT | _ROUTED | {"topk_method": "group_limited_greedy", "q_lora_rank": None},
    "deepseek_v3": _LATENT | _ROUTED | {"first_k_dense_replace": 1},
    "lfm2_moe": _WITHOUT_HEAD | _EXPERTS | {
        "num_experts": 4, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"],
    },
    "gpt_oss": _MINI | _WINDOWS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mimo_v2_flash": _MINI | _EXPERTS | _WINDOWS | {
        "n_routed_experts": 4, "v_head_dim": 8,
        "rope_parameters": {kind: {"partial_rotary_factor": 0.5} for kind in _KINDS},
    },
    "laguna": _MINI | _SHARED | _WINDOWS | {"num_attention_heads_per_layer": [4, 2]},
    "minimax_m3_vl_text": _MINI | {
        "num_experts_per_tok": 2, "num_local_experts": 4, "dense_intermediate_size": 96,
        "intermediate_size": 32, "shared_intermediate_size": 32, "rotary_dim": 8,
        "partial_rotary_factor": 0.5, "mlp_layer_types": ["dense", "sparse"],
    },
    "deepseek2": _MINI | _EXPERTS | {
        "num_key_value_heads": 4,
        "key_length": 24, "value_length": 16, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
        "n_routed_experts": 4,
    },
    "qwen3_next": _MINI | _SHARED | _LINEAR,
    "qwen3_5_text": _MINI | _LINEAR,
    "qwen3_5_moe_text": _MINI | _SHARED | _LINEAR,
    "granitemoehybrid": _MINI | {
        "layer_types": _HYBRID, "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 32, "shared_intermediate_size": 32, "mamba_n_heads": 8,
        "mamba_n_groups": 2, "mamba_d_state": 8, "attention_multiplier": 0.3,
        "residual_multiplier": 0.7,
    },
    "nemotron_h": {k: v for k, v in _MINI.items() if k != "num_hidden_layers"} | {
        "layers_block_type": [*_HYBRID, "moe", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 16,
        "n_groups": 2, "ssm_state_size": 8, "n_routed_experts": 4, "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
    },
    "gemma4_text": _MINI | {
        "num_hidden_layers": 4, "layer_types": _KINDS * 2, "sliding_window": 24,
        "global_head_dim": 24, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 300, "enable_moe_block": True, "num_experts": 4,
        "top_k_experts": 2, "moe_intermediate_size": 32,
    },
    "kimi_linear": _LATENT | {
        "layer_types": _HYBRID, "linear_head_dim": 16, "linear_num_heads": 3, "num_experts": 8,
        "num_experts_per_token": 2, "moe_intermediate_size": 32, "num_expert_group": 4,
        "topk_group": 2,
    },
    "ministral3": _MINI | {"rope_parameters": _GROWING},
    "mistral4": _LATENT | _ROUTED | {"rope_parameters": _GROWING},
    "minimax_m2": _MINI | {
        "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "rotary_dim": 8,
    },
    "cohere": _WITHOUT_HEAD | {"logit_scale": 0.3},
    "apertus": _MINI | {"hidden_act": "xielu"},
    "mamba2": {
        "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8,
        "head_dim": 16, "state_size": 8, "n_groups": 2,
    },
    "gpt2": {
        "vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96,
        "n_positions": 4096,
    },
    "deepseek_v32": _LATENT | _INDEXED,
    "glm_moe_dsa": _LATENT | _INDEXED | {"indexer_types": ["full", "shared"]},
    "llama4_text": _MINI | {
        "num_local_experts": 4, "intermediate_size_mlp": 96, "attention_chunk_size": 20,
        "floor_scale": 8, "no_rope_layers": [1, 0], "moe_layers": [1],
    },
    "gpt_neox": {k: v for k, v in _MINI.items() if k not in ("num_key_value_heads", "head_dim")},
    "deepseek_v4": _MINI | {
        "num_hidden_layers": 3, "num_key_value_heads": 1, "q_lora_rank": 32, "o_groups": 2,
        "o_lora_rank": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 32, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8,
        "sliding_window": 12, "layer_types": [
            "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
        ], "compress_rates": {"heavily_compressed_attention": 16}, "hc_mult": 2,
        "hc_sinkhorn_iters": 3, "mlp_layer_types": ["hash_moe", "moe", "moe"],
    },
    "falcon_h1": _MINI | {
        "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8,
        "mamba_rms_norm": True, "ssm_multipliers": [0.4, 0.5, 0.8, 1.1, 1.3],
        "key_multiplier": 0.6,
    },
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    "jamba": _WITHOUT_HEAD | {
        "num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8,
    },
    "phi": _WITHOUT_HEAD,
    "nemotron": _MINI,
    "jais2": _MINI,
    "gptj": {
        "vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8,
        "n_positions": 4096,
    },
    "qwen3_vl_moe_text": _MINI | _EXPERTS | {"num_experts": 4},
    "gemma3n_text": _MINI | {
        "num_hidden_layers": 4, "layer_types": _KINDS * 2, "sliding_window": 24,
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16, "laurel_rank": 8,
        "vocab_size_per_layer_input": VOCABULARY, "altup_num_inputs": 3,
        "activation_sparsity_pattern": [0.7, 0.7, 0.0, 0.0], "head_dim": 16,
    },
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "mpt": {
        "vocab_size": VOCABULARY, "d_model": 72, "n_layers": 2, "n_heads": 6,
        "attn_config": {"clip_qkv": 2.0},
    },
    "minimax": _MINI | {
        "layer_types": _HYBRID, "num_local_experts": 4, "full_attn_alpha_factor": 1.5,
        "linear_attn_alpha_factor": 1.5, "mlp_alpha_factor": 1.5,
    },
    "zamba2": {k: v for k, v in _WITHOUT_HEAD.items() if k != "num_key_value_heads"} | {
        "num_hidden_layers": 3, "layer_types": [*_HYBRID[:1], "hybrid", "hybrid"],
        "mamba_d_state": 16, "n_mamba_heads": 8, "adapter_rank": 8, "use_mem_rope": True,
        "use_shared_attention_adapter": True, "tie_word_embeddings": True,
    },
    "bailing_hybrid": _LATENT | _EXPERTS | {
        "layer_types": _HYBRID, "linear_head_dim": 16, "num_experts": 8, "num_expert_group": 4,
        "topk_group": 2, "first_k_dense_replace": 1,
    },
    "nanbeige": _MINI | {"num_loops": 2},
    "olmo": _MINI | {"clip_qkv": 2.0},
    "step3p5": _MINI | _EXPERTS | _WINDOWS | {
        "n_routed_experts": 4, "share_expert_dim": 32, "num_sliding_attention_heads": 6,
        "mlp_layer_types": ["dense", "sparse"], "swiglu_limits": [0.0, 0.2],
        "swiglu_limits_shared": [0.3, 0.0],
    },
    "rwkv7": {
        "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16,
        "intermediate_size": 96, "decay_low_rank_dim": 8, "gate_low_rank_dim": 12,
        "a_low_rank_dim": 8, "v_low_rank_dim": 4,
    },
    "diffllama": _MINI,
    "phi4flash": _WITHOUT_HEAD | {
        "num_hidden_layers": 8, "sliding_window": 24, "mamba_d_state": 8, "mamba_dt_rank": 4,
    },
    "olmo_hybrid": _WITHOUT_HEAD,
    "dory": _MINI | {
        "num_hidden_layers": 4, "n_input_layers": 1, "n_output_layers": 1, "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "initializer_range": 1.0,
        "ngpt_alpha_init": 0.4,
    },
    "qwen4_exp_text": _MINI | _SHARED | _LINEAR | {
        "hc_count": 2, "hc_lowrank": 16, "output_gate_type": "sigmoid", "eos_token_id": 2,
        "ple_layer_ids": [1], "ple_embed_dim": 64, "heads_per_ngram": 2, "split_ngram_parts": 1,
        "ngram_vocab_size_base": 60, "make_ngram_vocab_size_divisible_by": 8, "indexer_n_heads": 4,
        "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "kimi_k3_text": _LATENT | {
        "num_hidden_layers": 3, "attn_res_block_size": 2, "num_experts": 4,
        "num_experts_per_token": 2, "moe_intermediate_size": 32, "routed_expert_hidden_size": 32,
        "latent_moe_use_norm": True, "mla_use_output_gate": True,
        "linear_attn_config": {
            "head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0, "use_full_rank_gate": True,
            "full_attn_layers": [2], "kda_layers": [1, 3],
        },
    },
    "bitnet": _WITHOUT_HEAD,
    "hy_v4": _LATENT | _CHOSEN | {
        "indexer_types": ["full", "shared"], "mlp_layer_types": ["dense", "sparse"], "hc_mult": 2,
        "swiglu_limit": 0.5,
    },
    "mistral_large4_text": {k: v for k, v in _LATENT.items() if k != "q_lora_rank"} | _CHOSEN | {
        "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0], "kv_source_layers": [0, 1, 0, 1],
        "indexer_types": ["full", "full", "shared", "full"], "first_k_dense_replace": 1,
    },
    "glm5_next_text": _LATENT | _ROUTED | {
        "num_hidden_layers": 3, "qk_rope_head_dim": 0, "index_n_heads": 4, "index_head_dim": 16,
        "index_topk": 16, "index_kpool": 4, "linear_head_dim": 16, "linear_num_heads": 4,
        "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"],
        "indexer_types": ["full", "full", "shared"],
        "mlp_layer_types": ["dense", "sparse", "sparse"], "hc_mult": 2, "hc_sinkhorn_iters": 3,
    },
    "recurrent_gemma": _WITHOUT_HEAD | {
        "num_hidden_layers": 3, "attention_window_size": 24, "lru_width": 48,
        "logits_soft_cap": 20.0,
    },
    "persimmon": {k: v for k, v in _WITHOUT_HEAD.items() if k != "num_key_value_heads"},
    "phimoe": _MINI | {
        "num_local_experts": 8, "router_jitter_noise": 0.2, "attention_bias": True,
        "lm_head_bias": True,
    },
}  # fmt: skip
"""A small model of every family that brings something of its own and has no other here, by its
`model_type`.
"""

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "tiny-llama": _TINY | {"model_type": "llama", "tie_word_embeddings": True},
    "tiny-gemma3": _TINY | {
        "model_type": "gemma3_text", "num_hidden_layers": 4, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 16, "sliding_window": 24, "sliding_window_pattern": 2,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "tiny-mixtral": _TINY | {
        "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    },
    "tiny-lfm2": {k: v for k, v in _TINY.items() if k != "head_dim"} | {
        "model_type": "lfm2", "num_hidden_layers": 4, "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    },
    "tiny-deepseek_v4": {
        **MINI["deepseek_v4"], "model_type": "deepseek_v4", "dspark_block_size": 5,
        "dspark_markov_rank": 8, "dspark_noise_token_id": 7, "dspark_target_layer_ids": [0, 1, 2],
    },
    **{f"mini-{kind}": {**config, "model_type": kind} for kind, config in MINI.items()},
    "llama3-8b": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": False,
    },
    "delta-1b": {
        "model_type": "qwen3_5_text", "vocab_size": 65536, "hidden_size": 2048,
        "intermediate_size": 6144, "num_hidden_layers": 12, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "tie_word_embeddings": True,
    },
    "moe-1b": {
        "model_type": "qwen3_moe", "vocab_size": 65536, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "num_experts": 32, "num_experts_per_tok": 4,
        "moe_intermediate_size": 768, "norm_topk_prob": True, "tie_word_embeddings": True,
    },
    "conv-1b": {
        "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    },
}  # fmt: skip
"""Models of our families, as config.json would describe them."""
