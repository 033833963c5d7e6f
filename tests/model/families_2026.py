"""Gemma 3n, AFMoE and LFM3, for `test_every_family.py`."""

from __future__ import annotations

import numpy as np
import torch
from families_dense import USUAL
from family_harness import Family
from gguf_files import GGUF

ROPE, LOCAL, FULL = "rope_parameters", "sliding_attention", "full_attention"


def by_kind(full, local):
    """Rope parameters of both kinds of layers."""
    plain = {"rope_type": "default"}
    return {FULL: plain | {"rope_theta": full}, LOCAL: plain | {"rope_theta": local}}


def gemma3n_values(config):
    """Metadata of Gemma 3n; quantiles are computed in float32, as the converter does."""
    kinds, parts = config["layer_types"], torch.tensor(config["activation_sparsity_pattern"])
    return {
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == LOCAL for kind in kinds],
        "activation_sparsity_scale": torch.distributions.Normal(0, 1).icdf(parts).tolist(),
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.freq_base_swa": config[ROPE][LOCAL]["rope_theta"],
    }


def gemma3n_tensors(config, name, values):
    """Scales with an end, and a table per layer with a row for every id."""
    if name.endswith("embed_tokens_per_layer.weight"):
        values = np.pad(values, [(0, config["vocab_size"] - len(values)), (0, 0)])
    return {name + ".weight" * name.endswith("_scale"): values}


GEMMA3N = Family(
    "gemma3n",
    "Gemma3nTextConfig",
    base={
        "sliding_window": 9, "layer_types": [LOCAL, FULL], "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 96, "laurel_rank": 5, "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0, 0.0], ROPE: by_kind(1e3, 300.0),
    },
    shapes={
        "odd": {
            "layer_types": [LOCAL, FULL, FULL], "activation_sparsity_pattern": [0.6, 0.0, 0.3],
            "intermediate_size": [72, 64, 40], "vocab_size_per_layer_input": 90,
            "laurel_rank": 64,  # that of every GGUF file
        },
        "switched": {
            "layer_types": [LOCAL, FULL, LOCAL, FULL], "num_hidden_layers": 4,
            "activation_sparsity_pattern": [0.8, 0.0, 0.5, 0.0],
        },
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "num_kv_shared_layers": 2,
        "altup_active_idx": 1, "altup_correct_scale": False, "altup_num_inputs": 3,
    },
    moves=[
        {"rms_norm_eps": 0.021}, {"hidden_activation": "relu"}, {"sliding_window": 10},
        {f"{ROPE}.{FULL}.rope_theta": 900.0}, {f"{ROPE}.{LOCAL}.rope_theta": 350.0},
        {"final_logit_softcapping": 3.2}, {"activation_sparsity_pattern": [0.1, 0.0]},
    ],
    sizes=("laurel_rank", "hidden_size_per_layer_input", "vocab_size_per_layer_input"),
    refused=[
        ({"altup_lr_multiplier": 2.0}, "altup_lr_multiplier"),
    ],
    elsewhere=frozenset({"layer_types", "rope_local_base_freq"}),
    gguf=[
        GGUF("gemma3n", geometries=("odd",), values=gemma3n_values, tensors=gemma3n_tensors)
    ],
)  # fmt: skip


def biased(config, name, values):
    """The biases of experts, which the converter calls so."""
    return {f"{name}.bias" if name.endswith("expert_bias") else name: values}


AFMOE = Family(
    "afmoe",
    "AfmoeConfig",
    base={
        "sliding_window": 9, "layer_types": [LOCAL, FULL], "num_dense_layers": 1,
        "moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2,
        "num_shared_experts": 1,
    },
    shapes={
        "odd": {
            "num_hidden_layers": 4, "layer_types": [*[LOCAL] * 3, FULL], "mup_enabled": True,
            "route_scale": 1.3,
        },
    },
    switches={
        "layer_types": [FULL, LOCAL, FULL], "mup_enabled": True, "attention_bias": True,
        "num_dense_layers": 2, "num_shared_experts": 2, "route_scale": 1.7,
        "tie_word_embeddings": True,
    },
    moves=[
        *USUAL, {"sliding_window": 10}, {"route_scale": 1.1}, {"num_experts_per_tok": 3},
        {"hidden_act": "gelu"},
    ],
    sizes=("moe_intermediate_size", "num_experts"),
    refused=[({"score_func": "softmax"}, "score_func"), ({"n_group": 2}, "n_group")],
    elsewhere=frozenset({"global_attn_every_n_layers"}),
    gguf=[GGUF("afmoe", geometries=("odd",), tensors=biased, values=lambda config: {
        "attention.sliding_window": config["sliding_window"],
        "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"], "expert_gating_func": 2,
        "expert_weights_norm": True, "expert_weights_scale": config["route_scale"],
        "leading_dense_block_count": config["num_dense_layers"],
        "rope.dimension_count": config["head_dim"], "rope.freq_base": 10000.0,
    })],
)  # fmt: skip
CONV = "conv"
LFM3 = Family(
    "lfm3",
    "Lfm3Config",
    base={
        "norm_eps": 0.02, "conv_L_cache": 4, "sliding_window": 9, "layer_types": [LOCAL, FULL],
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        ROPE: {
            FULL: {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
            LOCAL: {"rope_type": "default", "rope_theta": 300.0},
        },
    },
    shapes={
        "odd": {"layer_types": ..., "head_dim": 12, "num_hidden_layers": 5},
        "switched": {"layer_types": [CONV, FULL, LOCAL]},
    },
    switches={
        "tie_word_embeddings": True, "conv_bias": True, "use_sandwich_norm": False,
        "use_attention_gate": False, "attention_bias": True,
    },
    moves=[
        {"norm_eps": 0.021}, {"sliding_window": 10},
        {f"{ROPE}.{FULL}.rope_theta": 900.0}, {f"{ROPE}.{LOCAL}.rope_theta": 350.0},
        {f"{ROPE}.{FULL}.partial_rotary_factor": 0.25},
    ],
    sizes=("conv_L_cache",),
    elsewhere=frozenset({"layer_types"}),
)  # fmt: skip
FAMILIES = [GEMMA3N, AFMOE, LFM3]
