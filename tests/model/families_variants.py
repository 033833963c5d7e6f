"""Families that vary the blocks of others, declared for `test_every_family.py`."""

from __future__ import annotations

import dataclasses

from families_experts import DEEPSEEK_V3, EXPERTS
from families_experts_2 import GRANITE_MOE
from families_mixed import LAYERS
from families_pairs import GRANITE_SWA
from family_harness import Family

ROPE = "rope_parameters"
USUAL = DEEPSEEK_V3.moves[:3]
GRANITEMOE_SWA = dataclasses.replace(
    GRANITE_MOE,
    name="granitemoe_swa",
    config="GraniteMoeSWAConfig",
    base={**GRANITE_MOE.base, "sliding_window": 9, "pad_token_id": 0},
    shapes=GRANITE_SWA.shapes,
    switches={
        **GRANITE_MOE.switches, "layer_rope_theta": [0, 500.0, 1e3],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    moves=[
        *(move for move in GRANITE_MOE.moves if f"{ROPE}.rope_theta" not in move),
        {"sliding_window": 10}, {"layer_rope_theta": [0, 500.0, 0]},
    ],
    gguf=[],
)  # fmt: skip
FLINT = Family(
    "flint",
    "FlintConfig",
    base={
        **EXPERTS, "shared_expert_intermediate_size": 40, "sliding_window": 9,
        "mlp_only_layers": [0], "layer_types": LAYERS[:2],
    },
    shapes={
        "odd": {"layer_types": LAYERS, "decoder_sparse_step": 2, "mlp_only_layers": []},
        "switched": {"num_experts": 5},  # of six, two are nearly as good for one token
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "norm_topk_prob": False,
        "layer_types": LAYERS[1:] + LAYERS[1:2], "mlp_only_layers": [1],
    },
    moves=[*USUAL, {"num_experts_per_tok": 3}, {"sliding_window": 10}],
    sizes=("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"),
    elsewhere=frozenset({"decoder_sparse_step"}),
)  # fmt: skip
SARVAM_MLA = dataclasses.replace(DEEPSEEK_V3, name="sarvam_mla", config="SarvamMLAConfig", gguf=[])
FAMILIES = [GRANITEMOE_SWA, FLINT, SARVAM_MLA]
