"""More families with state spaces, declared for `test_every_family.py`."""

from __future__ import annotations

from families_hybrid import ROPE, STATES, USUAL
from family_harness import Family

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
)  # fmt: skip
FALCON_H1 = Family(
    "falcon_h1",
    "FalconH1Config",
    base={**STATES, "mamba_expand": ..., "mamba_d_ssm": 64, "head_dim": ...},
    shapes={
        "wide": {"hidden_size": 64}, "odd": {"num_attention_heads": 2, "mamba_rms_norm": True},
    },
    switches={
        "mamba_proj_bias": True, "mamba_conv_bias": False, "projectors_bias": True,
        "tie_word_embeddings": True, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
        "lm_head_multiplier": 0.7, "embedding_multiplier": 1.5, "mlp_multipliers": [0.8, 0.6],
        "key_multiplier": 0.6, "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.2,
        "ssm_multipliers": [0.4, 0.5, 0.8, 1.1, 1.3], "ssm_in_multiplier": 1.1,
        "ssm_out_multiplier": 0.8,
    },
    moves=[
        USUAL[0], {f"{ROPE}.rope_theta": 900.0}, {"time_step_limit": [1.0, 1.5]},
        {"mamba_norm_before_gate": True},
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
)  # fmt: skip
SPACES = {
    "layer_norm_epsilon": 0.02, "rms_norm_eps": ..., "num_attention_heads": ...,
    "num_key_value_heads": ..., "intermediate_size": ..., "max_position_embeddings": ...,
    "head_dim": ..., "state_size": 6, "conv_kernel": 3, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
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
)  # fmt: skip
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
)  # fmt: skip
FAMILIES = [BAMBA, MAMBA2, FALCON_H1, MAMBA, FALCON_MAMBA, JAMBA]
