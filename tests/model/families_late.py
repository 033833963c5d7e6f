"""Families that came after those of their makers' neighbours, for `test_every_family.py`."""

from __future__ import annotations

from families_dense import USUAL
from family_harness import Family
from gguf_files import GGUF

OLMO = Family(
    "olmo",
    "OlmoConfig",
    base={"rms_norm_eps": ..., "pad_token_id": 0, "eos_token_id": 1},
    shapes={"odd": {"clip_qkv": 0.15}},
    switches={"attention_bias": True, "tie_word_embeddings": True, "clip_qkv": 0.1},
    moves=[*USUAL[1:], {"clip_qkv": 0.11}],
    elsewhere=frozenset({"layer_norm_eps"}),  # of GGUF files
    gguf=[GGUF("olmo", permuted=True, geometries=("wide", "odd"), values=lambda config: {
        "attention.layer_norm_epsilon": 1e-5,
        **({"attention.clamp_kqv": config["clip_qkv"]} if config["clip_qkv"] else {}),
    })],
)  # fmt: skip
HY3 = Family(
    "hy_v3",
    "HYV3Config",
    base={"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    switches={
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "mlp_layer_types": ["sparse", "dense", "sparse"], "num_shared_experts": 2,
        "router_scaling_factor": 1.5,
    },
    moves=[*USUAL, {"num_experts_per_tok": 3}, {"router_scaling_factor": 2.9}],
    sizes=("moe_intermediate_size", "num_experts"),
)  # fmt: skip
FAMILIES = [OLMO, HY3]
