"""Families whose queries choose keys, declared for `test_every_family.py`."""

from __future__ import annotations

from typing import ClassVar

import checkpoints
import numpy as np
import torch
import transformers
from families_dense import ROPE, USUAL
from families_experts import (
    COUNTS,
    LATENT,
    LATENT_SHAPES,
    ROUTED,
    SIZES,
    YARN,
    deepseek_tensors,
    deepseek_values,
)
from family_harness import Family
from gguf_files import GGUF
from transformers import conversion_mapping
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.mistral_large4 import modeling_mistral_large4 as large

INDEXED = {"q_lora_rank": 14, "index_n_heads": 8, "index_head_dim": 9, "index_topk": 7}
SPARSE_SWITCHES = {
    "n_group": 4, "topk_group": 2, "attention_bias": True, "n_shared_experts": 2,
    "norm_topk_prob": False, "routed_scaling_factor": 1.4, "tie_word_embeddings": True,
    "index_topk": 9, "mlp_layer_types": ["sparse", "dense", "sparse"],
}  # fmt: skip
MOVES = [
    *USUAL, {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5}, {"topk_group": 3},
    {"index_topk": 10},
]  # fmt: skip
SIZED = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim",
         "index_n_heads", "index_head_dim")  # fmt: skip
ELSEWHERE = COUNTS | SIZES | {
    "num_nextn_predict_layers", "first_k_dense_replace", "rope_interleave", "layer_types",
}  # fmt: skip
REFUSED = [
    ({"scoring_func": "softmax"}, "scoring_func"),
    ({"q_lora_rank": None}, "without q_lora_rank"),
    ({"index_head_dim": 4}, "index_head_dim = 4, less than is turned"),
    ({"rope_interleave": False}, "rope_interleave = False"),
]
GROUPED = {"n_group": 2, "topk_group": 1}
BASE = {**LATENT, **ROUTED, **INDEXED}
UNITS = {"mscale": 1.0, "mscale_all_dim": 1.0}
PARTS = {
    "wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj",
}  # fmt: skip


def indexed_values(config):
    """Metadata of DeepSeek V3.2 and GLM 5."""
    kinds = config.get("indexer_types")
    return deepseek_values(config, legacy=False) | {
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "attention.indexer.types": kinds and [kind == "full" for kind in kinds],
    }


def indexed_tensors(config, name, values):
    """Tensors of indexers under the names that the package does not know yet."""
    layer, _, part = name.partition(".self_attn.indexer.")
    if not part:
        return deepseek_tensors(config, name, values)
    tensor, _, end = part.rpartition(".")
    return {f"blk.{layer.rpartition('.')[2]}.indexer.{PARTS[tensor]}.{end}": values}


SHAPES = {**LATENT_SHAPES, "wide": LATENT_SHAPES["wide"] | GROUPED}
DEEPSEEK_V32 = Family(
    "deepseek_v32",
    "DeepseekV32Config",
    base=BASE,
    shapes=SHAPES | {"odd": {**LATENT_SHAPES["odd"], **GROUPED, ROPE: YARN | UNITS}},
    switches=SPARSE_SWITCHES,
    moves=MOVES,
    sizes=SIZED,
    elsewhere=ELSEWHERE,
    refused=[*REFUSED, ({"indexer_rope_interleave": True}, "indexer_rope_interleave")],
    gguf=[GGUF(
        "deepseek32", names="glm-dsa", geometries=("wide", "odd"), values=indexed_values,
        tensors=indexed_tensors,
    )],
)  # fmt: skip
GLM_DSA = Family(
    "glm_moe_dsa",
    "GlmMoeDsaConfig",
    base=BASE,
    shapes=SHAPES | {"odd": {**LATENT_SHAPES["odd"], "indexer_types": ["full", "shared", "full"]}},
    switches={**SPARSE_SWITCHES, "indexer_types": ["full", "full", "shared"]},
    moves=MOVES,
    sizes=SIZED,
    elsewhere=ELSEWHERE | {"index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"},
    refused=[
        *REFUSED,
        ({"indexer_rope_interleave": False}, "indexer_rope_interleave"),
        ({"indexer_types": ["shared", "full"]}, "a first layer that shares"),
    ],
    gguf=[GGUF(
        "glm-dsa", geometries=("wide", "odd"), values=indexed_values, tensors=indexed_tensors,
    )],
)  # fmt: skip
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
NEAR = "sliding_attention"
COMPRESSED = {
    "num_key_value_heads": 1, "q_lora_rank": 14, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "intermediate_size": 24, "compress_rates": {SPARSE: 2, HEAVY: 4}, "sliding_window": 6,
    "layer_types": [SPARSE, HEAVY], "mlp_layer_types": ["hash_moe", "moe"], "o_groups": 2,
    "o_lora_rank": 10, "index_n_heads": 8, "index_head_dim": 12, "index_topk": 3, "hc_eps": 0.01,
    "partial_rotary_factor": 0.4, "hc_sinkhorn_iters": 3,
}  # fmt: skip


def compressed_values(config):
    """Metadata of DeepSeek V4; rates of entries are 4 and 128, whatever the folder says."""
    rope, ratios = config["rope_parameters"], {NEAR: 0, SPARSE: 4, HEAVY: 128}
    limits, layers = [float(config["swiglu_limit"])] * config["num_hidden_layers"], "layer_types"
    return {
        "feed_forward_length": None, "expert_feed_forward_length": config["moe_intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
        "attention.compress_ratios": [*(ratios[kind] for kind in config[layers]), 0],
        "attention.compress_rope_freq_base": float(rope["compress"]["rope_theta"]),
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "attention.output_group_count": config["o_groups"],
        "attention.output_lora_rank": config["o_lora_rank"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "embedding_length_out": config["hidden_size"] * config["hc_mult"],
        "expert_count": config["n_routed_experts"], "expert_shared_count": 1,
        "expert_used_count": config["num_experts_per_tok"], "expert_gating_func": 4,
        "expert_weights_norm": True, "expert_weights_scale": config["routed_scaling_factor"],
        "hash_layer_count": config["mlp_layer_types"].count("hash_moe"),
        "hyper_connection.count": config["hc_mult"], "hyper_connection.epsilon": config["hc_eps"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "rope.dimension_count": config["qk_rope_head_dim"],
        "rope.freq_base": float(rope["main"]["rope_theta"]),
        "swiglu_clamp_exp": limits, "swiglu_clamp_shexp": limits,
    }  # fmt: skip


COMPRESSED_NAMES = {
    **{f"hc_{of}_{part}": f"hc_{of}_{part}.weight"
       for of in ("attn", "ffn") for part in ("fn", "base", "scale")},
    **{f"attn.{within}compressor.{name}": f"{own}_compressor_{end}.weight"
       for within, own in (("", "attn"), ("indexer.", "indexer"))
       for name, end in (("ape", "ape"), ("norm.weight", "norm"), ("wgate.weight", "gate"),
                         ("wkv.weight", "kv"))},
    "attn.attn_sink": "attn_sinks.weight", "attn.norm.weight": "attn_kv_a_norm.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight", "attn.wkv.weight": "attn_kv.weight",
    "attn.wo_a.weight": "attn_output_a.weight", "attn.wo_b.weight": "attn_output_b.weight",
    "attn.wq_a.weight": "attn_q_a.weight", "attn.wq_b.weight": "attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn_norm.weight": "attn_norm.weight", "ffn_norm.weight": "ffn_norm.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight", "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    **{f"ffn.shared_experts.{w}.weight": f"ffn_{role}_shexp.weight"
       for w, role in (("w1", "gate"), ("w2", "down"), ("w3", "up"))},
}  # fmt: skip


def compressed_tensors(config, name, values):
    """Tensors of DeepSeek V4 under names that the package does not know yet."""
    if name.startswith("model.hc_head."):
        return {f"output_{name.rpartition('.')[2]}.weight": values}
    if not name.startswith("model.layers."):
        return {name.replace("head.weight", "lm_head.weight"): values}
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    hashed = config["mlp_layer_types"][int(layer)] == "hash_moe"
    if hashed and rest == "ffn.gate.bias":
        return {}
    if rest.startswith("ffn.experts."):
        *start, w, end = name.replace("ffn.", "mlp.").split(".")
        role = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}[w]
        return {".".join((*start, role, end)): values}
    if rest == "ffn.gate.tid2eid":
        values = values.astype(np.int32)
    return {f"blk.{layer}.{COMPRESSED_NAMES[rest]}": values}


THREE = {
    "compress_rates": {SPARSE: 4, HEAVY: 128},
    "layer_types": [NEAR, SPARSE, SPARSE],
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe"],
}
DEEPSEEK_V4 = Family(
    "deepseek_v4",
    "DeepseekV4Config",
    base=COMPRESSED,
    shapes={"odd": THREE | {ROPE: YARN}, "switched": {"partial_rotary_factor": 0.5}},
    switches={
        "tie_word_embeddings": True, "layer_types": [HEAVY, NEAR, SPARSE], "hc_mult": 3,
        "mlp_layer_types": ["moe", "hash_moe", "moe"], "swiglu_limit": 0.8, "index_topk": 4,
        "routed_scaling_factor": 1.4, "hc_sinkhorn_iters": 2, "sliding_window": 5,
    },
    moves=[
        {"rms_norm_eps": 0.03}, {"hc_eps": 0.02}, {"index_topk": 5},
        {"layer_types": [HEAVY, NEAR, SPARSE], "rope_parameters.main.rope_theta": 9e3},
        {"rope_parameters.compress.rope_theta": 9e3},
    ],
    sizes=("q_lora_rank", "n_routed_experts", "num_experts_per_tok", "o_groups", "o_lora_rank",
           "index_n_heads", "index_head_dim", "hc_mult"),
    elsewhere=frozenset({
        "num_nextn_predict_layers", "num_hash_layers", "compress_ratios", "compress_rates",
        "compress_rope_theta", "qk_rope_head_dim", "dspark_block_size", "dspark_markov_rank",
        "dspark_noise_token_id", "dspark_target_layer_ids",
    }),
    refused=[
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"compress_rates": {SPARSE: 1}}, "compress_rates has 1"),
        ({"qk_rope_head_dim": 4}, "qk_rope_head_dim is 4"),
    ],
    gguf=[GGUF(
        "deepseek4", names="deepseek2", geometries=("odd",), values=compressed_values,
        tensors=compressed_tensors,
    )],
)  # fmt: skip


def hy_values(config):
    """Metadata of HunYuan 4."""
    clamps = [config["swiglu_limit"]] * config["num_hidden_layers"]
    lead = config["mlp_layer_types"].index("sparse")
    return indexed_values(config | {"first_k_dense_replace": lead}) | {
        **{f"hyper_connection.{key}": config[f"hc_{field}"] for key, field in (
            ("count", "mult"), ("epsilon", "eps"), ("magnitude", "magnitude"))},
        "swiglu_clamp_exp": clamps,
    }  # fmt: skip


def as_neighbours(rows, heads, turned):
    """The last rows of every head, whose halves are pairs, with pairs side by side."""
    rows = rows.reshape(heads, -1, *rows.shape[1:])
    order = np.arange(turned).reshape(2, -1).T.reshape(-1) + rows.shape[1] - turned
    still = rows[:, : rows.shape[1] - turned]
    return np.concatenate([still, rows[:, order]], axis=1).reshape(-1, *rows.shape[2:])


def hy_tensors(config, name, values):
    """Streams, gates and sinks under names that the package does not know yet."""
    parts = name.split(".")
    layer, end = (f"blk.{parts[2]}", parts[-1]) if parts[1] == "layers" else ("output", parts[-1])
    if ".hc_" in name:
        kind = "attn" if "attn" in name else "ffn"
        blk = f"{layer}.hc_{kind}" if layer != "output" else "output_hc"
        return {f"{blk}_{end.rpartition('_')[2]}.weight": values}
    if "learnable_sink" in name:
        return {f"{layer}.attn_sinks.weight": values}
    if ".self_attn.linear_gate" in name:
        return {f"{layer}.attn_gate.weight": values}
    name, turned = name.replace(".linear_gate.", ".gate_proj."), config["qk_rope_head_dim"]
    heads = {"q_b_proj": config["num_attention_heads"], "wq_b": config["index_n_heads"]}
    if parts[-2] in (*heads, "kv_a_proj_with_mqa", "wk", "k_norm"):
        values = as_neighbours(values, heads.get(parts[-2], 1), turned)
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(values, 2, axis=1)
        return {f"{layer}.ffn_gate_exps.weight": gate, f"{layer}.ffn_up_exps.weight": up}
    return indexed_tensors(config, name + ".weight" * name.endswith("down_proj"), values)


HY_V4 = Family(
    "hy_v4",
    "HYV4Config",
    base={
        **BASE, "first_k_dense_replace": ..., "pad_token_id": None, "hc_mult": 2, "hc_eps": 0.01,
        "mlp_layer_types": ["dense", "sparse"], "indexer_types": ["full", "shared"],
    },
    shapes=SHAPES | {"odd": {
        **LATENT_SHAPES["odd"], ROPE: dict(YARN), "mlp_layer_types": ["sparse", "dense", "sparse"],
        "indexer_types": ["full", "full", "shared"],
    }},
    switches={
        **SPARSE_SWITCHES, "hc_mult": 3, "swiglu_limit": 0.7, "hc_magnitude": 1.5,
        "indexer_types": ["full", "shared", "full"],
    },
    moves=[
        *MOVES, {"hc_eps": 0.02}, {"hc_magnitude": 1.6}, {"swiglu_limit": 0.8},
        {"rope_interleave": True}, {"layer_types": ["deepseek_sparse_attention"] * 2},
    ],
    sizes=(*SIZED, "hc_mult"),
    unread=("num_key_value_heads",),
    elsewhere=ELSEWHERE - {"layer_types", "rope_interleave"},
    refused=[
        *REFUSED[:3],
        ({"enable_ihc": False}, "enable_ihc"),
        ({"indexer_types": ["shared", "full"]}, "a first layer that shares"),
    ],
    gguf=[GGUF(
        "hy_v4", names="glm-dsa", geometries=("wide",), values=hy_values, tensors=hy_tensors,
    )],
)  # fmt: skip


class MistralLarge4TextForCausalLM(large.MistralLarge4PreTrainedModel):
    """The text model with its head, which transformers has with a tower only."""

    config: transformers.MistralLarge4TextConfig
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = large.MistralLarge4TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, ids, use_cache=False):
        logits = self.lm_head(self.model(ids, use_cache=use_cache).last_hidden_state)
        cap = self.config.final_logit_softcapping
        return CausalLMOutput(logits=torch.tanh(logits / cap) * cap)


checkpoints.OWN["MistralLarge4TextConfig"] = MistralLarge4TextForCausalLM
# Names of the files, but for the prefixes of text and tower.
WHOLE, TEXT = (
    conversion_mapping.get_checkpoint_conversion_mapping(f"mistral_large4{end}")
    for end in ("", "_text")
)
conversion_mapping.register_checkpoint_conversion_mapping(
    "MistralLarge4TextForCausalLM",
    [r for r in WHOLE if r.target_patterns[0].startswith((".o_proj", r".\1."))] + TEXT,
    overwrite=True,
)
OWN_ROWS = {"no_rope_layers": [1, 0], "kv_source_layers": [0, 1]}
MISTRAL_LARGE4 = Family(
    "mistral_large4",
    "MistralLarge4TextConfig",
    base={
        **BASE, **OWN_ROWS, "q_lora_rank": ..., "final_logit_softcapping": 3.0,
        "mlp_layer_types": ["dense", "sparse"], "indexer_types": ["full", "shared"],
        ROPE: {"rope_type": "default", "rope_theta": 1e3},
    },
    shapes=SHAPES | {"odd": {
        **LATENT_SHAPES["odd"], "no_rope_layers": [1, 0, 1], "kv_source_layers": [0, 1, 0],
        "indexer_types": ["full", "full", "shared"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        ROPE: {
            "rope_type": "yarn", "rope_theta": 1e3, "factor": 16.0, "attention_factor": 1.0,
            "original_max_position_embeddings": 16,
        },
    }},
    switches={
        **{key: value for key, value in SPARSE_SWITCHES.items() if key != "norm_topk_prob"},
        "no_rope_layers": [0, 1, 0], "kv_source_layers": [0, 1, 0],
        "indexer_types": ["full", "shared", "full"], "final_logit_softcapping": 2.0,
    },
    moves=[*MOVES, {"final_logit_softcapping": 3.5}],
    sizes=SIZED,
    elsewhere=ELSEWHERE | {
        "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset", "no_rope_layer_interval",
    },
    refused=[
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"index_head_dim": 4}, "index_head_dim = 4, less than is turned"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"indexer_types": ["shared", "full"]}, "a first layer that shares"),
    ],
)  # fmt: skip
FAMILIES = [DEEPSEEK_V32, GLM_DSA, DEEPSEEK_V4, HY_V4, MISTRAL_LARGE4]
