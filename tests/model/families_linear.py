"""Families with linear attention, or with shared blocks, among their layers: declarations."""

from __future__ import annotations

import re

import numpy as np
from families_hybrid import ROPE, USUAL
from family_harness import Family
from gguf_files import GGUF
from gguf_hybrid import FULL, LINEAR, kimi_tensors

FACTORS = [f"{kind}_{end}_factor" for kind in ("full_attn", "linear_attn", "mlp")
           for end in ("alpha", "beta")]  # fmt: skip
LIGHTNING = {
    "qkv_proj": "attn_qkv", "output_gate": "attn_gate", "norm": "attn_norm_2",
    "out_proj": "attn_output",
}  # fmt: skip


def minimax_values(config):
    """Metadata of MiniMax-01: one factor for the rows of all branches, none for operators."""
    return {
        "attention.recurrent_layers": [kind == LINEAR for kind in config["layer_types"]],
        "residual_scale": float(config["mlp_alpha_factor"]),
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
    }


def minimax_tensors(config, name, values):
    """Tensors of lightning attention under names that the package does not know yet."""
    if (match := re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.(\w+)\.weight", name)) and (
        match[2] in LIGHTNING
    ):
        return {f"blk.{match[1]}.{LIGHTNING[match[2]]}.weight": values}
    return {} if re.search("slope_rate|_decay", name) else {name: values}


MINIMAX = Family(
    "minimax",
    "MiniMaxConfig",
    base={
        "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": [LINEAR, FULL],
        ROPE: {"rope_type": "default", "rope_theta": 1e3}, "block_size": 7,
    },
    shapes={
        "odd": {
            "layer_types": [LINEAR, FULL, LINEAR], "num_attention_heads": 6, "head_dim": 6,
            **{f"{kind}_alpha_factor": 1.3 for kind in ("full_attn", "linear_attn", "mlp")},
        },
    },
    switches={
        "sliding_window": 8, "tie_word_embeddings": True, "layer_types": [FULL, LINEAR, LINEAR],
        **{name: 1.2 + 0.3 * n for n, name in enumerate(FACTORS)},
    },
    moves=[
        *USUAL, {f"{ROPE}.rope_theta": 900.0}, {"num_experts_per_tok": 3},
        {"sliding_window": 7}, *({name: 0.8} for name in FACTORS),
    ],
    sizes=("num_local_experts",),
    gguf=[GGUF(
        "minimax-01", names="minimax-m2", geometries=("wide", "odd"), tensors=minimax_tensors,
        values=minimax_values,
    )],
)  # fmt: skip

HYBRID = "hybrid"
STATES = {
    "mamba_d_state": 6, "mamba_ngroups": 2, "n_mamba_heads": 4, "mamba_d_conv": 3,
    "adapter_rank": 5,
}  # fmt: skip
DERIVED = ("attention_hidden_size", "kv_channels", "mamba_headdim", "num_query_groups")
ZAMBA2 = Family(
    "zamba2",
    "Zamba2Config",
    base={
        **STATES, "num_hidden_layers": 4, "num_mem_blocks": 1, "head_dim": ...,
        "layers_block_type": [LINEAR, HYBRID, LINEAR, HYBRID], "num_key_value_heads": 4,
        "pad_token_id": 0, "use_mem_rope": True, "time_step_min": 0.5, "tie_word_embeddings": True,
        ROPE: {"rope_type": "default", "rope_theta": 1e3},
    },
    shapes={
        "odd": {"num_hidden_layers": 3, "layers_block_type": [HYBRID, HYBRID, LINEAR],
                "num_key_value_heads": 2},
        "switched": {"num_hidden_layers": 4, "num_key_value_heads": 6},
    },
    switches={
        "use_shared_attention_adapter": True, "add_bias_linear": True, "num_mem_blocks": 2,
        "layers_block_type": [HYBRID, HYBRID, LINEAR, HYBRID], "use_mem_rope": False,
    },
    moves=[
        *USUAL, {f"{ROPE}.rope_theta": 900.0}, {"time_step_min": 0.6},
    ],
    sizes=(*STATES, "mamba_expand"),
    refused=[({"use_long_context": True}, "use_long_context")],
    elsewhere=frozenset({*DERIVED, "hybrid_layer_ids"}),
)  # fmt: skip

LING_SIZES = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
    "short_conv_kernel_size": 3, "num_experts": 8, "moe_intermediate_size": 24,
}  # fmt: skip


def ling_values(config):
    """Metadata of Ling 3: one KV head where attention is latent, none elsewhere."""
    rope, heads = config["qk_rope_head_dim"], [int(k == FULL) for k in config["layer_types"]]
    return {
        "attention.head_count_kv": heads, "attention.value_length": config["linear_head_dim"],
        "attention.key_length": config["kv_lora_rank"] + rope,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "rope.dimension_count": rope, "rope.freq_base": config["rope_theta"],
        "kda.head_dim": config["linear_head_dim"], "kda.safe_gate": True,
        "kda.gate_lower_bound": config["kda_lower_bound"],
        "ssm.conv_kernel": config["short_conv_kernel_size"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["moe_renormalize"], "expert_gating_func": 2,
        "leading_dense_block_count": config["first_k_dense_replace"],
    }  # fmt: skip


def ling_tensors(config, name, values):
    """Tensors of Kimi Linear's names; rates are positive, and each gate has its own name."""
    if match := re.fullmatch(r"model\.layers\.(\d+)\.attention\.([fg])_proj\.weight", name):
        full = config["layer_types"][int(match[1])] == FULL
        tensor = "attn_gate" if full else f"ssm_{match[2]}_a"
        return {f"blk.{match[1]}.{tensor}.weight": values}
    if name.endswith(".expert_bias"):
        return {f"blk.{name.split('.')[2]}.exp_probs_b.bias": values}
    if name.endswith(".A_log"):
        return {f"blk.{name.split('.')[2]}.ssm_a": np.exp(values).reshape(-1, 1)}
    return kimi_tensors(config, name.replace(".attention.", ".self_attn."), values)


LING3 = Family(
    "bailing_hybrid",
    "BailingHybridConfig",
    base={
        **LING_SIZES, "num_experts_per_token": 2, "num_expert_group": 4, "topk_group": 2,
        "num_key_value_heads": 4, "pad_token_id": 0, "head_dim": 10, "first_k_dense_replace": 1,
        "layer_types": [LINEAR, FULL], "model_max_length": 256,
        "rope_theta": 1e3,
    },
    shapes={
        "odd": {"layer_types": [LINEAR, LINEAR, FULL]},
        "switched": {"num_key_value_heads": 6},
    },
    switches={
        "q_lora_rank": 14, "attention_bias": True, "num_shared_experts": 2,
        "moe_renormalize": False, "layer_types": [FULL, LINEAR, LINEAR],
        "mlp_layer_types": ["sparse", "dense", "sparse"], "kda_safe_gate": False,
    },
    moves=[
        *USUAL, {"num_experts_per_token": 3}, {"routed_scaling_factor": 1.5}, {"topk_group": 3},
        {"kda_lower_bound": -4.0}, {"num_expert_group": 2},
        {"rope_theta": 900.0, f"{ROPE}.rope_theta": 900.0},
    ],
    sizes=tuple(LING_SIZES),
    unread=("head_dim",),
    elsewhere=frozenset({
        "layer_group_size", "linear_num_heads", "linear_conv_kernel_dim", "qk_head_dim",
        "first_k_dense_replace", "num_nextn_predict_layers", "linear_head_dim",
        # of Ling 2.5: test_ling.py
        "group_norm_size", "use_qk_norm", "rotary_dim", "moe_shared_expert_intermediate_size",
    }),
    gguf=[GGUF(
        "bailingmoe3", names="kimi-linear", geometries=("wide", "odd"), tensors=ling_tensors,
        values=ling_values,
    )],
)  # fmt: skip

FAMILIES = [MINIMAX, ZAMBA2, LING3]
