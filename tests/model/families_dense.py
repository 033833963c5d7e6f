"""Families whose layers are attention and one MLP, declared for `test_every_family.py`."""

from __future__ import annotations

import math

import numpy as np
from family_harness import Family
from gguf_files import GGUF, head_width

ROPE, ORIGINAL = "rope_parameters", "original_max_position_embeddings"
USUAL = [{"rms_norm_eps": 0.021}, {"hidden_act": "gelu_pytorch_tanh"}, {f"{ROPE}.rope_theta": 9e3}]
"""Options of nearly every family."""
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWS = {"use_sliding_window": True, "sliding_window": 9, "layer_types": LAYERS}
DYNAMIC = {
    f"{ROPE}.rope_type": "dynamic", f"{ROPE}.factor": 2.0,
    f"{ROPE}.original_max_position_embeddings": 16,
}  # fmt: skip
"""In a context longer than that, frequencies follow from the length."""

QWEN2 = Family(
    "qwen2",
    "Qwen2Config",
    switches={**WINDOWS, "tie_word_embeddings": True},
    moves=[
        *USUAL,
        {"sliding_window": 10},
        {"layer_types": ["full_attention", *LAYERS[1:]]},
        {"sliding_window": 9, "layer_types": ..., "max_window_layers": 1},
    ],
    refused=[(DYNAMIC, "dynamic NTK")],
    gguf=[GGUF("qwen2", geometries=("wide", "odd"))],
)
QWEN3 = Family(
    "qwen3",
    "Qwen3Config",
    switches={**WINDOWS, "attention_bias": True, "tie_word_embeddings": True},
    moves=QWEN2.moves,
    gguf=[GGUF("qwen3", geometries=("wide", "odd"))],
)
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e3, "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 1.5, 3.0],
}  # fmt: skip


def phi3_values(config):
    """Metadata of Phi 3: 0 for no window, the amplitude of longrope."""
    scale = math.log(config["max_position_embeddings"] / config[ORIGINAL])
    long = config[ROPE]["rope_type"] == "longrope"
    turned = int(head_width(config) * config[ROPE]["partial_rotary_factor"])
    return {
        "attention.sliding_window": config["sliding_window"] or 0,
        "rope.dimension_count": turned,
        "rope.scaling.original_context_length": config[ORIGINAL],
        "rope.scaling.attn_factor":
            math.sqrt(1 + scale / math.log(config[ORIGINAL])) if long else None,
    }  # fmt: skip


def phi3_factors(config):
    """Longrope's divisors."""
    rope = config[ROPE]
    return {
        f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32)
        for kind in ("long", "short")
        if f"{kind}_factor" in rope
    }


PHI3 = Family(
    "phi3",
    "Phi3Config",
    base={"pad_token_id": 0},
    switches={"sliding_window": 9, "tie_word_embeddings": True, ROPE: LONGROPE, ORIGINAL: 16},
    moves=[
        *USUAL[:2],
        {"sliding_window": 10},
        {f"{ROPE}.rope_theta": 900.0},
        {f"{ROPE}.long_factor": [1.0, 1.6, 3.0]},
        {ORIGINAL: 17, f"{ROPE}.{ORIGINAL}": 17},
        {ROPE: LONGROPE | {"partial_rotary_factor": 1.0, "long_factor": [1.0, 1.5, 3.0, 3.0]}},
        {f"{ROPE}.attention_factor": 1.4},
        {f"{ROPE}.rope_type": "longrope", "max_position_embeddings": 300},
    ],
    refused=[({f"{ROPE}.rope_type": "linear"}, "linear")],
    gguf=[GGUF("phi3", values=phi3_values, extra=phi3_factors)],
)
SMOLLM3 = Family(
    "smollm3",
    "SmolLM3Config",
    base={"pad_token_id": 0},
    switches={
        "use_sliding_window": True, "sliding_window": 9, "no_rope_layers": [1, 0, 1],
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    },
    moves=[
        *USUAL,
        {"sliding_window": 10},
        {"no_rope_layers": [1, 1, 0]},
        {"no_rope_layers": ..., "no_rope_layer_interval": 3},
        {"layer_types": ["full_attention"] * 3},
    ],
    refused=[],
    gguf=[GGUF("smollm3", permuted=True, geometries=("wide", "odd"))],
)  # fmt: skip
OLMO2 = Family(
    "olmo2",
    "Olmo2Config",
    switches={"attention_bias": True, "tie_word_embeddings": True},
    moves=USUAL,
    gguf=[GGUF("olmo2", geometries=("wide", "odd"))],
)
GRANITE = Family(
    "granite",
    "GraniteConfig",
    base={"attention_multiplier": 0.25},
    switches={
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "embedding_multiplier": 6.0, "attention_multiplier": 0.4, "residual_multiplier": 0.7,
        "logits_scaling": 3.0,
    },
    moves=[
        *USUAL, {"embedding_multiplier": 6.1}, {"attention_multiplier": 0.41},
        {"residual_multiplier": 0.71}, {"logits_scaling": 3.1},
    ],
    gguf=[GGUF("granite", permuted=True, values=lambda config: {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    })],
)  # fmt: skip
GEMMA2 = Family(
    "gemma2",
    "Gemma2Config",
    base={
        "sliding_window": 9, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0,
        "tie_word_embeddings": True,
    },
    shapes={"odd": {"query_pre_attn_scalar": 10}},
    switches={
        "attention_bias": True, "tie_word_embeddings": False, "query_pre_attn_scalar": 12,
        "layer_types": [*LAYERS[1:], LAYERS[1]], "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    moves=[
        {"rms_norm_eps": 0.021}, {"hidden_activation": "silu"}, {f"{ROPE}.rope_theta": 9e3},
        {"sliding_window": 10}, {"query_pre_attn_scalar": 13},
        {"layer_types": ["full_attention"] * 3},
    ],
    gguf=[GGUF("gemma2", norm_offset=1.0, geometries=("wide", "odd"), values=lambda config: {
        "attention.sliding_window": config["sliding_window"],
        "attn_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    })],
)  # fmt: skip
ALPHA = {"rope_type": "dynamic", "rope_theta": 1e3, "alpha": 50.0, "factor": 1.0,
         "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
HUNYUAN = Family(
    "hunyuan_v1_dense",
    "HunYuanDenseV1Config",
    switches={"attention_bias": True, "tie_word_embeddings": True, ROPE: ALPHA},
    moves=[*USUAL[:2], {f"{ROPE}.rope_theta": 900.0}, {f"{ROPE}.alpha": 51.0}],
    refused=[(DYNAMIC, "dynamic NTK")],
    gguf=[GGUF("hunyuan-dense", geometries=("wide", "odd"))],
)
STARCODER2 = Family(
    "starcoder2",
    "Starcoder2Config",
    base={"norm_epsilon": 0.02},
    switches={"use_bias": False, "sliding_window": 9, "tie_word_embeddings": True},
    moves=[
        {"norm_epsilon": 0.021}, {"hidden_act": "silu"}, {f"{ROPE}.rope_theta": 9e3},
        {"sliding_window": 10},
    ],
    refused=[({"norm_type": "rms_norm"}, "norm_type")],
    gguf=[GGUF("starcoder2", geometries=("wide", "odd"), values=lambda config: {
        "attention.layer_norm_epsilon": config["norm_epsilon"],
    })],
)  # fmt: skip
MLA = {"q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
       "v_head_dim": 12, "head_dim": ..., "num_key_value_heads": None}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "mscale_all_dim": 0.8,
        "mscale": 1.2, ORIGINAL: 64}  # fmt: skip
MINICPM3 = Family(
    "minicpm3",
    "MiniCPM3Config",
    base={**MLA, "dim_model_base": 16, "scale_emb": 12, "scale_depth": 1.4},
    shapes={"odd": {"v_head_dim": None, "dim_model_base": 256}},
    switches={
        "q_lora_rank": None, "mlp_bias": True, "attention_bias": True,
        "tie_word_embeddings": True, "scale_emb": 7,
        "scale_depth": 2.0, "dim_model_base": 24, ROPE: YARN,
    },
    moves=[
        *USUAL[:2], {"scale_emb": 7.1}, {"scale_depth": 2.1}, {"scale_depth": None},
        {"dim_model_base": 25}, {"dim_model_base": None}, {f"{ROPE}.mscale_all_dim": 0.9},
        {f"{ROPE}.rope_theta": 900.0},
    ],
    sizes=("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"),
    gguf=[GGUF("minicpm3", geometries=("odd",), values=lambda config: {
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": None,
        "rope.dimension_count": config["qk_rope_head_dim"],
    })],
)  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e3, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, ORIGINAL: 48}  # fmt: skip
LLAMA = Family(
    "llama",
    "LlamaConfig",
    switches={
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, ROPE: LLAMA3,
    },
    moves=[*USUAL[:2], {f"{ROPE}.factor": 8.3}, {f"{ROPE}.low_freq_factor": 1.1}],
    elsewhere=frozenset({"sliding_window"}),  # Mistral's
    gguf=[GGUF("llama", permuted=True)],
)  # fmt: skip
MISTRAL = Family(
    "llama",
    "MistralConfig",
    switches={"sliding_window": None, "tie_word_embeddings": True},
    base={"sliding_window": 9},
    moves=USUAL,
    elsewhere=frozenset({"attention_bias", "mlp_bias"}),  # Llama's
    title="mistral",
    gguf=[GGUF("llama", permuted=True, values=lambda config: {
        "attention.sliding_window": config["sliding_window"],
    })],
)  # fmt: skip
BY_KIND = {
    "full_attention": {"rope_type": "linear", "rope_theta": 2e3, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
GEMMA3 = Family(
    "gemma3",
    "Gemma3TextConfig",
    base={
        "sliding_window": 9, "query_pre_attn_scalar": 20, "tie_word_embeddings": True, ROPE: None,
    },
    shapes={"odd": {"query_pre_attn_scalar": 10}},
    switches={
        "attention_bias": True, "tie_word_embeddings": False, "query_pre_attn_scalar": 12,
        "layer_types": [*LAYERS[1:], LAYERS[1]], "final_logit_softcapping": 3.0, ROPE: BY_KIND,
    },
    moves=[
        {"rms_norm_eps": 0.021}, {"hidden_activation": "silu"}, {"sliding_window": 10},
        {"query_pre_attn_scalar": 13}, {"layer_types": LAYERS}, {"final_logit_softcapping": 3.1},
        {f"{ROPE}.full_attention.factor": 8.4}, {f"{ROPE}.sliding_attention.rope_theta": 312.0},
    ],
    # The pattern, older forms of the local base, and the cap that transformers does not pass on:
    elsewhere=frozenset({
        "attn_logit_softcapping", "rope_local_base_freq", "sliding_window_pattern",
        "use_bidirectional_attention",
    }),
    gguf=[GGUF("gemma3", norm_offset=1.0, geometries=("wide", "odd"), values=lambda config: {
        "attention.sliding_window": config["sliding_window"],
    })],
)  # fmt: skip
FAMILIES = [
    LLAMA, MISTRAL, GEMMA3, QWEN2, QWEN3, PHI3, SMOLLM3, OLMO2, GRANITE, GEMMA2, HUNYUAN,
    STARCODER2, MINICPM3,
]  # fmt: skip
