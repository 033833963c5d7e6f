"""Families whose scores fall with distance, declared for `test_every_family.py`."""

from __future__ import annotations

from families_classic import by_role
from family_harness import Family
from gguf_files import GGUF

FEW = {
    "rms_norm_eps": ..., "head_dim": ..., "intermediate_size": ..., "num_key_value_heads": ...,
    "max_position_embeddings": ..., "layer_norm_epsilon": 0.02, "tie_word_embeddings": True,
}  # fmt: skip


def bare_by_role(config, name, values):
    """Rows of q, k and v role by role, and names without the prefix, as the converter has them."""
    return by_role(config, name.removeprefix("transformer."), values)


BLOOM = Family(
    "bloom",
    "BloomConfig",
    base={**FEW, "bos_token_id": 0, "eos_token_id": 1},
    switches={"tie_word_embeddings": False, "apply_residual_connection_post_layernorm": True},
    moves=[{"layer_norm_epsilon": 0.021}],
    unread=("num_attention_heads",),
    gguf=[GGUF("bloom", geometries=("wide", "odd"), tensors=bare_by_role, values=lambda config: {
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "block_count": config["n_layer"], "attention.head_count": config["n_head"],
        "context_length": 2048, "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config["n_head"],
    })],
)  # fmt: skip


def mpt_values(config):
    """Metadata of MPT."""
    of = config["attn_config"]
    return {
        "attention.layer_norm_epsilon": 1e-5,
        "embedding_length": config["d_model"],
        "block_count": config["n_layers"],
        "attention.head_count": config["n_heads"],
        "context_length": config["max_seq_len"],
        "feed_forward_length": 4 * config["d_model"],
        "attention.max_alibi_bias": float(of["alibi_bias_max"]),
        **({"attention.clamp_kqv": of["clip_qkv"]} if of["clip_qkv"] else {}),
    }


MPT = Family(
    "mpt",
    "MptConfig",
    base=FEW,
    switches={"tie_word_embeddings": False},
    shapes={
        "odd": {"layer_norm_epsilon": 1e-5, "attn_config": {"clip_qkv": 0.5}},
        "switched": {"attn_config": {"clip_qkv": 0.6, "softmax_scale": 0.2}},
    },
    moves=[
        {"layer_norm_epsilon": 0.021}, {"attn_config.alibi_bias_max": 6},
        {"attn_config.clip_qkv": 0.1}, {"attn_config.softmax_scale": 0.3},
    ],
    refused=[
        ({"attn_config.qk_ln": True}, "attn_config.qk_ln"),
        ({"attn_config.alibi": False}, "attn_config.alibi"),
        ({"logit_scale": 0.5}, "logit_scale"),
    ],
    sizes=("expansion_ratio",),
    unread=("num_attention_heads",),
    elsewhere=frozenset({"clip", "alibi_bias_max"}),  # of GGUF files
    gguf=[GGUF("mpt", geometries=("odd",), values=mpt_values)],
)  # fmt: skip
FAMILIES = [BLOOM, MPT]
