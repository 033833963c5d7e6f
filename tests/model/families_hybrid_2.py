"""More families with state spaces, declared for `test_every_family.py`."""

from __future__ import annotations

import numpy as np
from families_hybrid import ROPE, STATES, USUAL
from family_harness import Family
from gguf_files import GGUF
from gguf_hybrid import experts_apart, mamba_tensors

BAMBA = Family(
    "bamba",
    "BambaConfig",
    base={**STATES, "attn_layer_indices": [1], "head_dim": ...},
    shapes={"wide": {"hidden_size": 64}, "odd": {"num_attention_heads": 2}},
    switches={
        "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True,
        "mamba_conv_bias": False, "tie_word_embeddings": True, "attn_layer_indices": [0, 2],
    },
    moves=[*USUAL, {f"{ROPE}.rope_theta": 900.0}, {"time_step_limit": [1.0, 1.5]}],
    sizes=(*STATES, "mamba_d_head", "mamba_expand"),
    elsewhere=frozenset({"layer_types"}),
)  # fmt: skip
SPACE_KEYS = {
    "context_length": 1 << 20, "attention.head_count": 0, "feed_forward_length": 0,
    "attention.key_length": None, "attention.value_length": None, "rope.freq_base": None,
    "attention.head_count_kv": None,
}  # fmt: skip
"""Metadata that models without attention have, or have not."""


def space_values(config):
    """Metadata of Mamba and Mamba-2."""
    return {
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"], "ssm.state_size": config["state_size"],
    }  # fmt: skip


def mamba2_tensors(config, name, values):
    """Decays as columns, the norm's parts one below the other."""
    return mamba_tensors(config, name, values, config["n_groups"])


MAMBA2 = Family(
    "mamba2",
    "Mamba2Config",
    base={
        "layer_norm_epsilon": 0.02, "rms_norm_eps": ..., "num_attention_heads": ...,
        "num_key_value_heads": ..., "intermediate_size": ..., "max_position_embeddings": ...,
        "state_size": 6, "n_groups": 2, "conv_kernel": 3, "num_heads": 4, "head_dim": 20,
        "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1,
    },
    shapes={
        "wide": {"hidden_size": 40}, "switched": {"hidden_size": 48, "head_dim": 24},
    },
    switches={"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True},
    moves=[
        {"layer_norm_epsilon": 0.021}, {"hidden_act": "gelu_pytorch_tanh"},
        {"time_step_limit": [1.0, 1.5]},
    ],
    sizes=("state_size", "n_groups", "conv_kernel", "expand"),
    gguf=[GGUF("mamba2", geometries=("wide", "odd"), tensors=mamba2_tensors, values=lambda config: {
        **SPACE_KEYS, **space_values(config), "ssm.group_count": config["n_groups"],
        "ssm.inner_size": config["num_heads"] * config["head_dim"],
        "ssm.time_step_rank": config["num_heads"],
    })],
)  # fmt: skip


def multiplied(config, name, values):
    """Matrices times the factors of their products."""
    ((name, values),) = mamba_tensors(config, name, values, config["mamba_n_groups"]).items()
    factors = {
        "down_proj": config["mlp_multipliers"][1], "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * config["attention_in_multiplier"],
        "q_proj": config["attention_in_multiplier"], "v_proj": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    factor = factors.get(name.removesuffix(".weight").rpartition(".")[2], 1.0)
    if name.endswith("in_proj.weight"):
        inner = config["mamba_d_ssm"]
        states = config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = inner, inner, states, states, config["mamba_n_heads"]
        rows = np.repeat(config["ssm_multipliers"], sizes)
        factor = config["ssm_in_multiplier"] * rows[:, None]
    return {name: (values * factor).astype(np.float32)}


FALCON_H1 = Family(
    "falcon_h1",
    "FalconH1Config",
    base={
        **STATES, "mamba_expand": ..., "mamba_d_ssm": 64, "head_dim": ...,
        "mamba_norm_before_gate": False,
    },
    shapes={
        "wide": {"hidden_size": 64},
        "odd": {
            "num_attention_heads": 2, "mamba_rms_norm": True, "key_multiplier": 0.6,
            "mlp_multipliers": [0.8, 0.6], "ssm_multipliers": [0.4, 0.5, 0.8, 1.1, 1.3],
            "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.8, "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.9, "lm_head_multiplier": 0.7,
            "embedding_multiplier": 1.5,
        },
    },
    switches={
        "mamba_proj_bias": True, "mamba_conv_bias": False, "projectors_bias": True,
        "tie_word_embeddings": True, "mamba_rms_norm": True, "mamba_norm_before_gate": True,
        "lm_head_multiplier": 0.7, "embedding_multiplier": 1.5, "mlp_multipliers": [0.8, 0.6],
        "key_multiplier": 0.6, "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.2,
        "ssm_multipliers": [0.4, 0.5, 0.8, 1.1, 1.3], "ssm_in_multiplier": 1.1,
        "ssm_out_multiplier": 0.8,
    },
    moves=[
        USUAL[0], {f"{ROPE}.rope_theta": 900.0}, {"time_step_limit": [1.0, 1.5]},
        {"mamba_norm_before_gate": False},
        *({name: 1.3} for name in (
            "lm_head_multiplier", "embedding_multiplier", "key_multiplier", "ssm_in_multiplier",
            "attention_out_multiplier", "attention_in_multiplier", "ssm_out_multiplier",
        )),
        {"mlp_multipliers": [0.8, 0.7]}, {"mlp_multipliers": [0.7, 0.6]},
        *({"ssm_multipliers": [0.7 if n == m else 0.5 for m in range(5)]} for n in range(5)),
    ],
    sizes=(*STATES, "mamba_d_head", "mamba_d_ssm"),
    refused=[({"attention_bias": True}, "attention_bias"), ({"mlp_bias": True}, "mlp_bias")],
    elsewhere=frozenset({"mamba_expand"}),
    gguf=[GGUF("falcon-h1", tensors=multiplied, geometries=("wide", "odd"), values=lambda config: {
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"], "ssm.inner_size": config["mamba_d_ssm"],
        "ssm.time_step_rank": config["mamba_n_heads"],
    })],
)  # fmt: skip
SPACES = {
    "layer_norm_epsilon": 0.02, "rms_norm_eps": ..., "num_attention_heads": ...,
    "num_key_value_heads": ..., "intermediate_size": ..., "max_position_embeddings": ...,
    "head_dim": ..., "state_size": 6, "conv_kernel": 3, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip


def mamba_values(config):
    """Metadata of Mamba and Falcon Mamba."""
    return {
        **SPACE_KEYS, **space_values(config), "ssm.inner_size": config["intermediate_size"],
        "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }  # fmt: skip


def mamba1_tensors(config, name, values):
    """Decays as they are, taps without an axis."""
    if name.endswith("A_log"):
        values = -np.exp(values)
    if name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    return {name: values[:, 0] if name.endswith("conv1d.weight") else values}


MAMBA = Family(
    "mamba",
    "MambaConfig",
    base={**SPACES, "tie_word_embeddings": True},
    switches={
        "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False,
        "time_step_rank": 5,
    },
    moves=[{"layer_norm_epsilon": 0.021}, {"hidden_act": "gelu_pytorch_tanh"}],
    sizes=("state_size", "conv_kernel", "expand"),
    elsewhere=frozenset({"mixer_rms_eps"}),
    gguf=[GGUF("mamba", tensors=mamba1_tensors, values=mamba_values, geometries=("wide", "odd"))],
)  # fmt: skip
FALCON_MAMBA = Family(
    "mamba",
    "FalconMambaConfig",
    base={**SPACES, "tie_word_embeddings": True, "mixer_rms_eps": 0.02},
    switches={
        "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False,
        "time_step_rank": 5, "mixer_rms_eps": 0.04,
    },
    moves=[
        {"layer_norm_epsilon": 0.021}, {"hidden_act": "gelu_pytorch_tanh"},
        {"mixer_rms_eps": 0.05},
    ],
    sizes=("state_size", "conv_kernel", "expand"),
    title="falcon_mamba",
    gguf=[GGUF("mamba", tensors=mamba1_tensors, values=mamba_values, geometries=("wide", "odd"))],
)  # fmt: skip


def jamba_tensors(config, name, values):
    """Experts under the usual names; gate and up of them apart."""
    ((name, values),) = mamba1_tensors(config, name, values).items()
    return experts_apart(name.replace("feed_forward.experts.", "mlp.experts."), values)


JAMBA = Family(
    "jamba",
    "JambaConfig",
    base={
        "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2,
        "attn_layer_offset": 1, "mamba_d_state": 6, "mamba_d_conv": 3, "head_dim": ...,
        "use_mamba_kernels": False,
    },
    shapes={"odd": {"num_experts": 1}},
    switches={
        "mamba_proj_bias": True, "mamba_conv_bias": False, "tie_word_embeddings": True,
        "attn_layer_period": 3, "attn_layer_offset": 0, "expert_layer_period": 3,
        "expert_layer_offset": 2, "mamba_dt_rank": 5, "num_experts_per_tok": 1,
    },
    moves=[*USUAL, {"num_experts_per_tok": 2}],
    sizes=("mamba_d_state", "mamba_d_conv", "mamba_expand"),
    elsewhere=frozenset({"num_experts"}),
    gguf=[GGUF("jamba", tensors=jamba_tensors, geometries=("wide", "odd"), values=lambda config: {
        "attention.head_count_kv": [
            config["num_key_value_heads"]
            * (n % config["attn_layer_period"] == config["attn_layer_offset"])
            for n in range(config["num_hidden_layers"])
        ],
        "attention.key_length": None, "attention.value_length": None, "rope.freq_base": None,
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.time_step_rank": config["mamba_dt_rank"], "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
    })],
)  # fmt: skip
FAMILIES = [BAMBA, MAMBA2, FALCON_H1, MAMBA, FALCON_MAMBA, JAMBA]
