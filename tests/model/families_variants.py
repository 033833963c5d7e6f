"""Families that vary the blocks of others, declared for `test_every_family.py`."""

from __future__ import annotations

import dataclasses

import torch
import transformers
from checkpoints import OWN
from families_classic import GPTJ, OPT
from families_dense_2 import GPT2
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
OPENAI_GPT = dataclasses.replace(
    GPT2,
    name="openai_gpt",
    config="OpenAIGPTConfig",
    base={key: value for key, value in GPT2.base.items() if key != "n_inner"},
    shapes={},
    moves=[{"layer_norm_epsilon": 0.021}, {"afn": "silu"}],
    refused=[({"afn": "tanh"}, "activation 'tanh'")],
    elsewhere=frozenset({"activation_function", "n_inner"}),
    gguf=[],
)  # fmt: skip
CODEGEN = dataclasses.replace(
    GPTJ,
    name="codegen",
    config="CodeGenConfig",
    shapes={**GPTJ.shapes, "switched": {"num_attention_heads": 8}},
)
BIOGPT = Family(
    "biogpt",
    "BioGptConfig",
    base={
        **{key: OPT.base[key] for key in ("rms_norm_eps", "head_dim", "num_key_value_heads")},
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    },
    switches={"tie_word_embeddings": True, "scale_embedding": False},
    moves=[{"hidden_act": "relu"}],
    sizes=("max_position_embeddings",),
    unread=("num_attention_heads",),
)  # fmt: skip


class DoubleXGLM(transformers.XGLMForCausalLM):
    """XGLM, whose bound of scores has the default type: in double that has to be double, too."""

    def forward(self, *inputs, **options):
        """Compute in the weights' type throughout."""
        usual = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            return super().forward(*inputs, **options)
        finally:
            torch.set_default_dtype(usual)


OWN["XGLMConfig"] = DoubleXGLM
XGLM = Family(
    "xglm",
    "XGLMConfig",
    base={**BIOGPT.base, "intermediate_size": ..., "ffn_dim": 56},
    switches=BIOGPT.switches,
    moves=[{"activation_function": "relu"}],
    sizes=("ffn_dim",),
    unread=("num_attention_heads",),
)  # fmt: skip
RECURRENT_GEMMA = Family(
    "recurrent_gemma",
    "RecurrentGemmaConfig",
    base={
        "head_dim": ..., "attention_window_size": 9, "num_hidden_layers": 3,
        "tie_word_embeddings": True, "lru_width": 56,
    },
    shapes={
        "odd": {
            "lru_width": None, "hidden_size": 56, "num_attention_heads": 2,
            "num_hidden_layers": 4,
        },
        "switched": {"block_types": ["attention", "recurrent"], "lru_width": 36},
    },
    switches={"attention_bias": True, "tie_word_embeddings": False, "conv1d_width": 3},
    moves=[
        {"rms_norm_eps": 0.021}, {"hidden_activation": "relu"}, {"attention_window_size": 10},
        {"logits_soft_cap": 20.0}, {f"{ROPE}.partial_rotary_factor": 1.0},
    ],
    sizes=("lru_width",),
    elsewhere=frozenset({"block_types"}),
)  # fmt: skip
FAMILIES = [
    GRANITEMOE_SWA, FLINT, SARVAM_MLA, OPENAI_GPT, CODEGEN, BIOGPT, XGLM, RECURRENT_GEMMA,
]  # fmt: skip
