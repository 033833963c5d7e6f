"""Families of earlier years that are still in use, declared for `test_every_family.py`."""

from __future__ import annotations

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
    heads = config["num_attention_heads"]
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
FAMILIES = [JAIS2, GPTJ, PHI, GPT_NEOX, NEMOTRON]
