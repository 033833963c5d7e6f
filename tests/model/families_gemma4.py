"""Gemma 4: declarations."""

from __future__ import annotations

import numpy as np
from family_harness import Family
from gguf_files import GGUF

ROPE, LOCAL, FULL = "rope_parameters", "sliding_attention", "full_attention"


def by_kind(full, local, share):
    """Rope parameters of both kinds of layers."""
    return {
        FULL: {"rope_type": "proportional", "rope_theta": full, "partial_rotary_factor": share},
        LOCAL: {"rope_type": "default", "rope_theta": local},
    }


ELSEWHERE = frozenset({"per_layer_config", "use_bidirectional_attention", "layer_types"})
PLAIN = {
    "sliding_window": 9, "layer_types": [LOCAL, FULL], "global_head_dim": 16,
    "hidden_size_per_layer_input": 0, ROPE: by_kind(1e3, 300.0, 0.5),
}  # fmt: skip


def of_global_layers(config):
    """Return the overrides for layers without a window."""
    return config["per_layer_config"][str(config["layer_types"].index(FULL))]


def gemma4_values(config):
    """Metadata of Gemma 4: kinds of layers, both widths of heads."""
    kinds, whole = config["layer_types"], of_global_layers(config)
    wide = whole["head_dim"]
    shared, width = config["num_kv_shared_layers"], config["intermediate_size"]
    heads, own = config["num_key_value_heads"], whole.get("num_key_value_heads")
    values = {
        "attention.key_length": wide, "attention.value_length": wide,
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.shared_kv_layers": shared,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == LOCAL for kind in kinds],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config.get("final_logit_softcapping") or 0.0,
        "rope.dimension_count": wide, "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base": config[ROPE][FULL]["rope_theta"],
        "rope.freq_base_swa": config[ROPE][LOCAL]["rope_theta"],
        "expert_count": config.get("num_experts"),
        "expert_used_count": config.get("top_k_experts"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
    }  # fmt: skip
    if config["use_double_wide_mlp"]:
        first = len(kinds) - shared
        values["feed_forward_length"] = [width * (1 + (n >= first)) for n in range(len(kinds))]
    if own:
        values["attention.head_count_kv"] = [heads if kind == LOCAL else own for kind in kinds]
    return values


def gemma4_tensors(config, name, values):
    """Names with their ends, and scales of routers under GGUF's own names."""
    if name.endswith("router.scale"):
        return {name.replace("router.scale", "router.proj.scale"): values}
    if name.endswith("router.per_expert_scale"):
        return {name.replace("router.per_expert_scale", "experts.down_proj.scale"): values}
    ends = "layer_scalar", "experts.gate_up_proj", "experts.down_proj"
    return {name + ".weight" * name.endswith(ends): values}


def divisors(config):
    """Of the frequencies of layers without a window: huge for pairs that are not turned."""
    half = of_global_layers(config)["head_dim"] // 2
    turned = int(half * config[ROPE][FULL]["partial_rotary_factor"])
    return {"rope_freqs.weight": np.array([1.0] * turned + [1e30] * (half - turned), np.float32)}


FILE = {"values": gemma4_values, "tensors": gemma4_tensors, "extra": divisors}
GEMMA4 = Family(
    "gemma4",
    "Gemma4TextConfig",
    base=PLAIN,
    shapes={
        "odd": {
            "layer_types": [LOCAL, FULL, FULL], "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 96,
        },
        "switched": {"layer_types": [LOCAL, FULL, LOCAL, FULL], "num_hidden_layers": 4},
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "final_logit_softcapping": 3.0,
        "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 96,
    },
    moves=[
        {"rms_norm_eps": 0.021}, {"hidden_activation": "relu"}, {"sliding_window": 10},
        {f"{ROPE}.{FULL}.rope_theta": 900.0}, {f"{ROPE}.{LOCAL}.rope_theta": 350.0},
        {f"{ROPE}.{FULL}.partial_rotary_factor": 0.25}, {"final_logit_softcapping": 3.2},
    ],
    refused=[({"use_bidirectional_attention": "all"}, "use_bidirectional_attention")],
    gguf=[GGUF("gemma4", geometries=("odd",), **FILE)],
    elsewhere=ELSEWHERE | {
        "global_head_dim", "num_global_key_value_heads", "enable_moe_block", "num_experts",
        "top_k_experts", "moe_intermediate_size", "attention_k_eq_v",
    },
)  # fmt: skip
GEMMA4_EXPERTS = Family(
    "gemma4",
    "Gemma4TextConfig",
    base={
        **PLAIN, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
        "moe_intermediate_size": 24,
    },
    shapes={
        "odd": {"layer_types": [LOCAL, FULL, FULL]},
        "switched": {"layer_types": [LOCAL, FULL, FULL], "num_global_key_value_heads": 2},
    },
    switches={"attention_k_eq_v": True, "tie_word_embeddings": True},
    moves=[{"rms_norm_eps": 0.021}, {"hidden_activation": "relu"}, {"top_k_experts": 3}],
    sizes=("num_experts", "moe_intermediate_size"),
    elsewhere=ELSEWHERE | {
        "global_head_dim", "num_global_key_value_heads", "hidden_size_per_layer_input",
        "vocab_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp",
        "final_logit_softcapping", "enable_moe_block", "attention_bias", "sliding_window",
    },
    gguf=[GGUF("gemma4", geometries=("wide", "switched"), **FILE)],
    title="gemma4-experts",
)  # fmt: skip
GEMMA4_UNIFIED = Family(
    "gemma4",
    "Gemma4UnifiedTextConfig",
    base={key: PLAIN[key] for key in PLAIN if key != "hidden_size_per_layer_input"},
    shapes={
        "odd": {"layer_types": [LOCAL, FULL, FULL]},
        "switched": {
            "layer_types": [LOCAL, FULL, LOCAL, FULL], "num_hidden_layers": 4,
            "num_global_key_value_heads": 2,
        },
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "final_logit_softcapping": 3.0, "attention_k_eq_v": True,
    },
    moves=[{"rms_norm_eps": 0.021}, {"sliding_window": 10}],
    refused=[({"use_bidirectional_attention": "all"}, "use_bidirectional_attention")],
    elsewhere=ELSEWHERE | {
        "global_head_dim", "num_global_key_value_heads", "hidden_size_per_layer_input",
        "vocab_size_per_layer_input", "enable_moe_block", "num_experts", "top_k_experts",
        "moe_intermediate_size", "hidden_activation", "model_type",
    },
    title="gemma4-unified",
)  # fmt: skip
FAMILIES = [GEMMA4, GEMMA4_EXPERTS, GEMMA4_UNIFIED]
