"""Families of 2025 with layers of their own, for `test_every_family.py`."""

from __future__ import annotations

import transformers
from checkpoints import OWN
from families_dense import LLAMA3, ROPE, USUAL
from family_harness import Family
from gguf_files import GGUF

CHUNKS = ["chunked_attention", "full_attention", "chunked_attention"]


def stacked(config, name, values):
    """Experts of a file that holds them the other way round, and gate beside up."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: values}
    values = values.swapaxes(-1, -2)
    if name.endswith("down_proj"):
        return {f"{name}.weight": values}
    gate, up = (name.replace("gate_up", part) + ".weight" for part in ("gate", "up"))
    half = values.shape[1] // 2
    return {gate: values[:, :half], up: values[:, half:]}


LLAMA4 = Family(
    "llama4",
    "Llama4TextConfig",
    base={
        "num_local_experts": 16, "intermediate_size_mlp": 56, "attention_chunk_size": 9,
        "floor_scale": 5, "moe_layers": [1], "pad_token_id": 0,
    },
    shapes={
        "wide": {
            "num_hidden_layers": 4, "attention_chunk_size": 8192, "floor_scale": 8192,
            "moe_layers": [1, 3], "interleave_moe_layer_step": 2,
        },
        "odd": {"num_local_experts": 5, "layer_types": CHUNKS},
    },
    switches={
        "no_rope_layers": [1, 0, 1], "attention_bias": True, "use_qk_norm": False,
        "num_experts_per_tok": 2, "attention_chunk_size": 7, "attn_scale": 0.4,
        "moe_layers": [0, 2], ROPE: LLAMA3, "tie_word_embeddings": True,
    },
    moves=[
        *USUAL, {"attention_chunk_size": 8}, {"attn_scale": 0.5},
        {"attn_scale": 0.4, "floor_scale": 6},
        {"attn_scale": 0.4, "layer_types": ["full_attention"] * 3},
        {"attn_scale": 0.4, "attn_temperature_tuning": False},
        {"no_rope_layers": ..., "no_rope_layer_interval": 3},
    ],
    sizes=("intermediate_size_mlp", "num_local_experts"),
    elsewhere=frozenset({"chunk", "interleave_moe_layer_step"}),
    gguf=[GGUF("llama4", geometries=("wide",), tensors=stacked, values=lambda config: {
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "feed_forward_length": config["intermediate_size_mlp"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    })],
)  # fmt: skip
BITNET = Family(
    "bitnet",
    "BitNetConfig",
    base={"head_dim": ...},
    switches={"attention_bias": True, "tie_word_embeddings": True},
    moves=USUAL,
)
OWN["MllamaTextConfig"] = transformers.MllamaForCausalLM
MLLAMA = Family(
    "mllama",
    "MllamaTextConfig",
    base={
        "head_dim": ..., "cross_attention_layers": [1], "pad_token_id": 0, "bos_token_id": 0,
        "eos_token_id": 1, "num_hidden_layers": 3,
    },
    switches={"cross_attention_layers": [1, 2], ROPE: LLAMA3},
    moves=[*USUAL, {f"{ROPE}.factor": 9.0}],
)  # fmt: skip
FAMILIES = [LLAMA4, BITNET, MLLAMA]
