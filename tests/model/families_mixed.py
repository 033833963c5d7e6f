"""Families whose layers differ in heads, windows, tables and experts: declarations."""

from __future__ import annotations

import dataclasses

from family_harness import Family
from gguf_files import GGUF
from gguf_hybrid import experts_apart

from cortiq.models import minimax_m3_vl

ROPE = "rope_parameters"
LAYERS = ["full_attention", "sliding_attention", "full_attention"]
USUAL = [{"rms_norm_eps": 0.021}, {"hidden_act": "gelu_pytorch_tanh"}]


def by_kind(full, local, share):
    """Rope parameters of both kinds of layers."""
    return {
        "full_attention": {"rope_type": "default", "rope_theta": full,
                           "partial_rotary_factor": share},
        "sliding_attention": {"rope_type": "default", "rope_theta": local,
                              "partial_rotary_factor": share},
    }  # fmt: skip


def mimo_values(config):
    """Metadata of MiMo V2: windows and KV heads by layer."""
    local = [kind == "sliding_attention" for kind in config["layer_types"]]
    heads, rope = config["num_key_value_heads"], config[ROPE]
    turned = rope["full_attention"]["partial_rotary_factor"]
    return {
        "attention.head_count_kv": [heads * (2 if window else 1) for window in local],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [int(window) for window in local],
        "attention.value_length": config["v_head_dim"],
        "attention.value_scale": config["attention_value_scale"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "rope.dimension_count": int(turned * config["head_dim"]),
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
    }


MIMO = Family(
    "mimo_v2_flash",
    "MiMoV2FlashConfig",
    base={
        "sliding_window": 9, "v_head_dim": 6, "moe_intermediate_size": 24, "n_routed_experts": 4,
        "num_experts_per_tok": 2, ROPE: by_kind(1e3, 300.0, 0.4),
    },
    shapes={
        "wide": {
            "num_key_value_heads": 2, "layer_types": LAYERS[:2],
            "mlp_layer_types": ["dense", "sparse"],
        },
        "switched": {
            "num_key_value_heads": 3, "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
        },
    },
    switches={
        "attention_bias": True, "attention_value_scale": None, "norm_topk_prob": False,
        "routed_scaling_factor": 1.5, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["sparse", "sparse", "dense"], ROPE: by_kind(800.0, 500.0, 0.8),
    },
    moves=[
        *USUAL, {"sliding_window": 10}, {"num_experts_per_tok": 3},
        {"attention_value_scale": 0.8}, {"routed_scaling_factor": 1.6},
        {"routed_scaling_factor": 1.5, "topk_group": 1},
        {"routed_scaling_factor": 1.5, "topk_group": 1, "n_group": 1},
        {f"{ROPE}.full_attention.rope_theta": 700.0},
        {f"{ROPE}.sliding_attention.rope_theta": 400.0},
        {f"{ROPE}.sliding_attention.partial_rotary_factor": 0.5},
    ],
    sizes=("v_head_dim", "moe_intermediate_size", "n_routed_experts"),
    gguf=[
        GGUF("mimo2", geometries=("wide",), values=mimo_values, tensors=lambda _, name, values: {
            name + ".weight" * name.endswith("sink_bias"): values,
        }),
    ],
)  # fmt: skip


def laguna_values(config):
    """Metadata of Laguna; the pattern of layers with windows is that of llama.cpp if not said."""
    head, rope = config["head_dim"], config[ROPE]
    kinds = config["layer_types"] or ["full_attention"] * config["num_hidden_layers"]
    turned = {kind: int(head * rope[kind]["partial_rotary_factor"]) for kind in rope}
    return {
        "attention.head_count": config["num_attention_heads_per_layer"]
        or [config["num_attention_heads"]] * config["num_hidden_layers"],
        "attention.sliding_window": config["sliding_window"] if "sliding" in str(kinds) else None,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "rope.dimension_count": turned["full_attention"],
        "rope.dimension_count_swa": turned["sliding_attention"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "leading_dense_block_count": 1,
        "expert_weights_scale": float(config["moe_routed_scaling_factor"]),
    }


def laguna_names(config, name, values):
    """Names of Laguna's own tensors as its converter maps them."""
    name = name.replace("shared_expert.", "shared_experts.")
    name = name.replace("self_attn.g_proj", "attn_gate")
    name = name.replace("mlp.experts.e_score_correction.bias", "exp_probs_b.bias")
    own = name.endswith(("attn_gate.weight", "exp_probs_b.bias"))
    return {name.replace("model.layers", "blk") if own else name: values}


LAGUNA = Family(
    "laguna",
    "LagunaConfig",
    base={
        "sliding_window": 9, "moe_intermediate_size": 24, "num_experts": 4,
        "num_experts_per_tok": 2, "shared_expert_intermediate_size": 20,
        ROPE: by_kind(1e3, 300.0, 0.4),
    },
    shapes={
        "wide": {
            "num_key_value_heads": 2, "layer_types": LAYERS[:2],
            "num_attention_heads_per_layer": [4, 6],
        },
        "switched": {"num_attention_heads_per_layer": [6, 3, 6]},
    },
    switches={
        "attention_bias": True, "gating": "per-element", "moe_router_logit_softcapping": 1.5,
        "moe_routed_scaling_factor": 1.5, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"], ROPE: by_kind(800.0, 500.0, 0.8),
    },
    moves=[
        *USUAL, {"sliding_window": 10}, {"num_experts_per_tok": 3},
        {"moe_router_logit_softcapping": 1.4}, {"moe_routed_scaling_factor": 1.6},
        {f"{ROPE}.full_attention.rope_theta": 700.0},
        {f"{ROPE}.sliding_attention.rope_theta": 400.0},
    ],
    sizes=("moe_intermediate_size", "num_experts", "shared_expert_intermediate_size"),
    unread=("num_attention_heads",),
    elsewhere=frozenset({"num_attention_heads_per_layer"}),  # a list of sizes
    refused=[({"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input")],
    gguf=[GGUF("laguna", names="step35", geometries=("wide", "odd"), tensors=laguna_names,
               values=laguna_values)],
)  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}
MINIMAX = Family(
    "minimax_m3_vl",
    "MiniMaxM3VLTextConfig",
    base={
        "num_local_experts": 4, "num_experts_per_tok": 2, "dense_intermediate_size": 56,
        "intermediate_size": 24, "shared_intermediate_size": 20, "swiglu_limit": 1.5,
        "rotary_dim": 10, ROPE: HALF,
    },
    shapes={
        "wide": {"mlp_layer_types": ["dense", "sparse"]},
        "odd": {
            "mlp_layer_types": ["sparse", "dense", "sparse"], "rotary_dim": 6,
            ROPE: HALF | {"partial_rotary_factor": 0.6},
        },
        "switched": {"rotary_dim": 8, ROPE: HALF | {"partial_rotary_factor": 1.0}},
    },
    switches={
        "routed_scaling_factor": 1.5, "swiglu_alpha": 1.2, "tie_word_embeddings": True,
        "mlp_layer_types": ["sparse", "sparse", "dense"],
    },
    moves=[
        USUAL[0], {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.6},
        {"swiglu_alpha": 1.3}, {"swiglu_limit": 1.6}, {f"{ROPE}.rope_theta": 900.0},
        {"rotary_dim": 12, f"{ROPE}.partial_rotary_factor": 0.6},
    ],
    sizes=("dense_intermediate_size", "shared_intermediate_size", "num_local_experts",
           "rotary_dim"),
    # Sparse layers have a test of their own: test_sparse_layers.py.
    elsewhere=frozenset({
        "layer_types", "index_n_heads", "index_head_dim", "index_block_size",
        "index_topk_blocks", "index_local_blocks",
    }),
    refused=[
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["minimax_m3_sparse"] * 2, "index_block_size": 10, "index_head_dim": 8},
         "index_head_dim = 8, less than is turned"),
    ],
)  # fmt: skip


def m3_values(config):
    """Metadata of MiniMax M3."""
    return {
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_shared_count": 1,
        "feed_forward_length": config["dense_intermediate_size"],
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": config["routed_scaling_factor"],
        "leading_dense_block_count": 1,
        "rope.dimension_count": config["rotary_dim"],
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk_blocks"],
        "attention.indexer.block_size": config["index_block_size"],
        "attention.indexer.local_blocks": config["index_local_blocks"],
    }


def m3_tensors(config, name, values):
    """Gate and up apart, the indexer under names that the package does not know yet."""
    layer, _, part = name.partition(".self_attn.indexer.")
    if part:
        return {f"blk.{layer.rpartition('.')[2]}.indexer.{part}": values}
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return experts_apart(name, values)
    if not name.endswith("gate_up_proj.weight"):
        return {name: values}
    half = len(values) // 2
    return {name.replace("gate_up", "gate"): values[:half],
            name.replace("gate_up", "up"): values[half:]}  # fmt: skip


MINIMAX_FILES = Family(
    "minimax_m3_vl", "MiniMaxM3VLTextConfig", title="minimax_m3 files", switches={}, moves=[],
    elsewhere=frozenset(f.name for f in dataclasses.fields(minimax_m3_vl.Config)),
    base=MINIMAX.base | {
        "shared_intermediate_size": 24, "swiglu_limit": 7.0, "index_n_heads": 2,
        "index_head_dim": 16, "index_block_size": 4, "index_topk_blocks": 3,
    },
    shapes={
        "wide": {
            "mlp_layer_types": ["dense", "sparse"],
            "layer_types": ["full_attention", "minimax_m3_sparse"],
        },
        "odd": MINIMAX.shapes["odd"], "switched": MINIMAX.shapes["switched"],
    },
    gguf=[GGUF("minimax-m3", names="step35", norm_offset=1.0, geometries=("wide",),
               values=m3_values, tensors=m3_tensors)],
)  # fmt: skip
"""As GGUF files have it: with the bounds of every file, and indexers wherever there are experts."""
FAMILIES = [MIMO, LAGUNA, MINIMAX, MINIMAX_FILES]
