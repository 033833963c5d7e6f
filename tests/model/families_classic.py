"""Families of earlier years that are still in use, declared for `test_every_family.py`."""

from __future__ import annotations

import numpy as np
from families_dense import ROPE, USUAL
from family_harness import Family
from gguf_files import GGUF

LAYER_NORM = [
    {"layer_norm_eps": 0.021}, {"hidden_act": "relu"}, USUAL[2],
    {f"{ROPE}.partial_rotary_factor": 1.0},
]  # fmt: skip
NORMED = {"layer_norm_eps": 0.02, "rms_norm_eps": ...}


def turned(config):
    """Elements of a head that are rotated."""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(head * config[ROPE]["partial_rotary_factor"])


PHI = Family(
    "phi",
    "PhiConfig",
    base={**NORMED, "head_dim": ...},
    shapes={"odd": {"hidden_size": 56, "num_attention_heads": 2}},
    switches={"tie_word_embeddings": True},
    moves=LAYER_NORM,
    refused=[({"qk_layernorm": True}, "qk_layernorm")],
    gguf=[GGUF("phi2", geometries=("wide", "odd"), values=lambda config: {
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "rope.dimension_count": turned(config),
    })],
)  # fmt: skip


def by_role(config, name, values):
    """Rows of q, k and v that lie head by head, as the converter orders them: role by role."""
    if ".query_key_value." not in name:
        return {name: values}
    heads = config.get("num_attention_heads") or config["n_head"]
    rows = values.reshape(heads, 3, -1, *values.shape[1:])
    return {name: rows.swapaxes(0, 1).reshape(values.shape)}


GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoXConfig",
    base={**NORMED, "head_dim": ..., "num_key_value_heads": ..., "bos_token_id": 0},
    shapes={"wide": {"hidden_size": 64}},
    switches={
        "attention_bias": False, "use_parallel_residual": False, "tie_word_embeddings": True,
    },
    moves=LAYER_NORM,
    unread=("num_attention_heads",),
    gguf=[GGUF("gptneox", geometries=("wide", "odd"), tensors=by_role, values=lambda config: {
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "use_parallel_residual": config["use_parallel_residual"],
        "rope.dimension_count": turned(config),
    })],
)  # fmt: skip
NEMOTRON = Family(
    "nemotron",
    "NemotronConfig",
    base={"norm_eps": 0.02, "rms_norm_eps": ...},
    shapes={"odd": {"head_dim": 12}},
    switches={"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    moves=[{"norm_eps": 0.021}, *LAYER_NORM[1:]],
    gguf=[GGUF("nemotron", norm_offset=1.0, geometries=("wide", "odd"), values=lambda config: {
        "attention.layer_norm_epsilon": config["norm_eps"],
        "rope.dimension_count": turned(config),
    })],
)  # fmt: skip
JAIS2 = Family(
    "jais2",
    "Jais2Config",
    base={**NORMED},
    switches={"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
    moves=LAYER_NORM[:3],
    gguf=[
        GGUF(
            "jais2",
            values=lambda config: {
                "attention.layer_norm_epsilon": config["layer_norm_eps"],
                "rope.dimension_count": config["head_dim"],
            },
        )
    ],
)
GPTJ = Family(
    "gptj",
    "GPTJConfig",
    base={
        "layer_norm_epsilon": 0.02, "rms_norm_eps": ..., "head_dim": ...,
        "num_key_value_heads": ..., "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1,
        "intermediate_size": ..., "n_inner": 56, "max_position_embeddings": ...,
        "n_positions": 256, "resid_pdrop": 0.0, "rotary_dim": 6, "num_hidden_layers": 2,
    },
    shapes={"odd": {"n_inner": None}},
    switches={"tie_word_embeddings": True, "rotary_dim": 4},
    moves=[
        {"layer_norm_epsilon": 0.021}, {"activation_function": "relu"}, {"rotary_dim": 2},
    ],
    unread=("num_attention_heads",),
)  # fmt: skip
OPT = Family(
    "opt",
    "OPTConfig",
    base={
        "rms_norm_eps": ..., "head_dim": ..., "num_key_value_heads": ..., "intermediate_size": ...,
        "ffn_dim": 56, "word_embed_proj_dim": ..., "pad_token_id": 1, "bos_token_id": 0,
        "eos_token_id": 2,
    },
    switches={"tie_word_embeddings": True, "enable_bias": False},
    moves=[{"activation_function": "gelu"}],
    sizes=("ffn_dim", "max_position_embeddings"),
    unread=("num_attention_heads",),
    elsewhere=frozenset({"word_embed_proj_dim"}),
    refused=[
        ({"do_layer_norm_before": False}, "do_layer_norm_before"),
        ({"word_embed_proj_dim": 8}, "word_embed_proj_dim is 8"),
    ],
)  # fmt: skip


def by_kind(config, name, values):
    """Rows of q, k and v of a group, as the converter orders them: queries first, then keys."""
    if ".query_key_value." not in name:
        return {name: values}
    heads = config["num_attention_heads"]
    grouped = config["new_decoder_architecture"] or not config["multi_query"]
    groups = config["num_kv_heads"] if grouped else 1
    rows = values.reshape(groups, heads // groups + 2, -1, *values.shape[1:])
    parts = rows[:, :-2], rows[:, -2:-1], rows[:, -1:]
    joined = np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])
    return {name: joined}


def falcon_values(config):
    """Metadata of Falcon."""
    grouped = config["new_decoder_architecture"] or not config["multi_query"]
    return {
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "tensor_data_layout": "jploski",
        "feed_forward_length": config["ffn_hidden_size"],
        "attention.head_count_kv": config["num_kv_heads"] if grouped else 1,
    }


OLD = {
    "layer_norm_epsilon": 0.02, "rms_norm_eps": ..., "head_dim": ..., "intermediate_size": ...,
    "num_key_value_heads": ..., "ffn_hidden_size": 56, "num_kv_heads": ..., "bos_token_id": 0,
    "eos_token_id": 1, "tie_word_embeddings": True,
}  # fmt: skip
FALCON = Family(
    "falcon",
    "FalconConfig",
    base=OLD,
    shapes={"switched": {"num_kv_heads": 6}},
    switches={
        "tie_word_embeddings": False, "multi_query": False, "parallel_attn": False, "bias": True,
    },
    moves=[{"layer_norm_epsilon": 0.021}, {"activation": "relu"}, {f"{ROPE}.rope_theta": 900.0}],
    sizes=("ffn_hidden_size",),
    unread=("num_attention_heads",),
    refused=[({"alibi": True}, "alibi")],
    elsewhere=frozenset({"new_decoder_architecture", "num_ln_in_parallel_attn"}),
    gguf=[GGUF("falcon", geometries=("wide", "odd"), tensors=by_kind, values=falcon_values)],
)  # fmt: skip
FALCON_NEW = Family(
    "falcon",
    "FalconConfig",
    base={**OLD, "new_decoder_architecture": True, "num_kv_heads": 2},
    shapes={"switched": {"num_kv_heads": 3}},
    switches={"tie_word_embeddings": False, "bias": True, "num_ln_in_parallel_attn": 1},
    moves=[{"layer_norm_epsilon": 0.021}],
    sizes=("ffn_hidden_size",),
    unread=("num_attention_heads",),
    elsewhere=frozenset({
        "new_decoder_architecture", "multi_query", "parallel_attn", "hidden_act",
    }),
    gguf=[GGUF("falcon", geometries=("wide", "odd"), tensors=by_kind, values=falcon_values)],
    title="falcon new",
)  # fmt: skip
FAMILIES = [JAIS2, GPTJ, PHI, GPT_NEOX, NEMOTRON, OPT, FALCON, FALCON_NEW]
