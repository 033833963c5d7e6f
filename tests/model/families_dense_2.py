"""More families whose layers are attention and one MLP, declared for `test_every_family.py`."""

from __future__ import annotations

from families_dense import LAYERS, LLAMA3, ROPE, USUAL, YARN
from family_harness import Family
from gguf_files import GGUF

LAYER_NORM = [{"layer_norm_eps": 0.021}, *USUAL[1:]]
NORMED = {"layer_norm_eps": 0.02}
WINDOWED = {"sliding_window": 9, "layer_types": LAYERS}
BOTH = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}


def pattern(config):
    """Whether each layer has a window."""
    return [kind == "sliding_attention" for kind in config["layer_types"]]


OLMO3 = Family(
    "olmo3",
    "Olmo3Config",
    base={"sliding_window": 9, ROPE: ...},
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "layer_types": LAYERS, ROPE: BOTH,
    },
    moves=[
        *USUAL[:2], {"sliding_window": 10}, {"layer_types": ["full_attention"] * 3},
        {f"{ROPE}.full_attention.factor": 4.3}, {f"{ROPE}.sliding_attention.rope_theta": 312.0},
    ],
    gguf=[GGUF("olmo2", marked="windows", geometries=("wide", "odd"), values=lambda config: {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": pattern(config),
        "rope.freq_base_swa": config[ROPE].get("sliding_attention", {}).get("rope_theta"),
    })],
)  # fmt: skip
SEED_OSS = Family(
    "seed_oss",
    "SeedOssConfig",
    switches={
        "attention_bias": False, "attention_out_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    moves=USUAL,
    gguf=[GGUF("seed_oss", geometries=("wide", "odd"))],
)  # fmt: skip
ARCEE = Family(
    "arcee",
    "ArceeConfig",
    switches={"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    moves=USUAL,
    gguf=[GGUF("arcee", permuted=True, geometries=("wide", "odd"))],
)
ERNIE = Family(
    "ernie4_5",
    "Ernie4_5Config",
    switches={"use_bias": True, "tie_word_embeddings": True},
    moves=USUAL,
    gguf=[GGUF("ernie4_5", geometries=("wide", "odd"))],
)
EXAONE4 = Family(
    "exaone4",
    "Exaone4Config",
    base={"sliding_window": None, "layer_types": ["full_attention"] * 2},
    shapes={"odd": {"sliding_window": 9, "layer_types": LAYERS}},
    switches={**WINDOWED, "tie_word_embeddings": True},
    moves=[
        *USUAL, {"sliding_window": 10}, {"layer_types": ["full_attention"] * 3},
        {"layer_types": ..., "sliding_window_pattern": 3},
    ],
    gguf=[GGUF("exaone4", values=lambda config: {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": pattern(config) if config["sliding_window"] else None,
    })],
)  # fmt: skip
COHERE = Family(
    "cohere",
    "CohereConfig",
    base={**NORMED, "head_dim": ..., "tie_word_embeddings": True},
    switches={
        "attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.3,
        "use_qk_norm": True,
    },
    moves=[*LAYER_NORM, {"logit_scale": 0.31}],
    shapes={"odd": {"use_qk_norm": True}},
    gguf=[GGUF("command-r", geometries=("wide", "odd"), values=lambda config: {
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "logit_scale": config["logit_scale"],
    })],
)  # fmt: skip
COHERE2 = Family(
    "cohere2",
    "Cohere2Config",
    base={**NORMED, "head_dim": ..., "sliding_window": 9, "tie_word_embeddings": True},
    switches={
        "attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.3,
        "layer_types": LAYERS[1:] + LAYERS[1:2],
    },
    moves=[
        *LAYER_NORM, {"logit_scale": 0.31}, {"sliding_window": 10},
        {"layer_types": ["full_attention"] * 3},
        {"layer_types": ..., "logit_scale": 0.3, "sliding_window_pattern": 2},
    ],
    refused=[({"use_parallel_block": False}, "use_parallel_block")],
    gguf=[GGUF("cohere2", geometries=("wide", "odd"), values=lambda config: {
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
        "logit_scale": config["logit_scale"],
    })],
)  # fmt: skip
GLM4 = Family(
    "glm4",
    "Glm4Config",
    base={"pad_token_id": 0, "eos_token_id": 1},
    shapes={"odd": {"head_dim": 12}},
    switches={"attention_bias": False, "tie_word_embeddings": True},
    moves=[*USUAL, {f"{ROPE}.partial_rotary_factor": 1.0}],
    elsewhere=frozenset({"model_type", "num_nextn_predict_layers"}),  # below; test_vision.py
    gguf=[GGUF("glm4", geometries=("odd",), values=lambda config: {
        "rope.dimension_count": config["head_dim"] // 2,
    })],
)  # fmt: skip
GLM = Family(
    "glm4",
    "GlmConfig",
    base={"pad_token_id": 0, "eos_token_id": 1},
    shapes={"odd": {"head_dim": 12}},
    switches={"attention_bias": False, "tie_word_embeddings": True},
    moves=[*USUAL, {f"{ROPE}.partial_rotary_factor": 1.0}],
    elsewhere=frozenset({"model_type", "num_nextn_predict_layers"}),
    title="glm",
)
GEMMA = Family(
    "gemma",
    "GemmaConfig",
    base={"tie_word_embeddings": True},
    switches={"attention_bias": True, "tie_word_embeddings": False},
    moves=[USUAL[0], {"hidden_act": "silu"}, USUAL[2]],
    gguf=[GGUF("gemma", norm_offset=1.0, geometries=("wide", "odd"))],
)
HELIUM = Family(
    "helium",
    "HeliumConfig",
    shapes={"wide": {"head_dim": 12}},
    switches={"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    moves=USUAL,
)
STABLELM = Family(
    "stablelm",
    "StableLmConfig",
    base={**NORMED, "head_dim": ...},
    shapes={"wide": {"hidden_size": 64}},
    switches={
        "use_qkv_bias": True, "tie_word_embeddings": True, "use_parallel_residual": True,
        "qk_layernorm": True,
    },
    moves=[*LAYER_NORM, {f"{ROPE}.partial_rotary_factor": 0.5}],
    gguf=[GGUF("stablelm", values=lambda config: {
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "use_parallel_residual": config["use_parallel_residual"],
        "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"] // 4,
    })],
)  # fmt: skip
GROWING = YARN | {"llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 8}
MINISTRAL3 = Family(
    "ministral3",
    "Ministral3Config",
    base={ROPE: GROWING | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    switches={
        "sliding_window": 9, "tie_word_embeddings": True, ROPE: GROWING | {"rope_theta": 900.0},
    },
    moves=[
        *USUAL[:2], {"sliding_window": 10}, {f"{ROPE}.llama_4_scaling_beta": 0.31},
        {f"{ROPE}.original_max_position_embeddings": 9},
    ],
    gguf=[GGUF("mistral3", geometries=("wide", "odd"), permuted=True, values=lambda config: {
        "attention.temperature_scale": config[ROPE]["llama_4_scaling_beta"],
        "rope.scaling.yarn_log_multiplier": config[ROPE]["mscale_all_dim"],
    })],
)  # fmt: skip
APERTUS = Family(
    "apertus",
    "ApertusConfig",
    base={"hidden_act": "xielu", "dtype": "float32"},
    switches={"attention_bias": True, "tie_word_embeddings": True, ROPE: LLAMA3},
    moves=[USUAL[0], {f"{ROPE}.factor": 8.3}],
    refused=[({"hidden_act": "silu"}, "hidden_act")],
    elsewhere=frozenset({"output_vocab_size"}),  # of 1.5
    gguf=[GGUF("apertus", numbers={r"mlp\.act_fn\.(\w+)": "xielu"})],
)  # fmt: skip


def untransposed(config, name, values):
    """Matrices with a row for each output."""
    matrix = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    return {name: values.T if matrix else values}


GPT2 = Family(
    "gpt2",
    "GPT2Config",
    base={
        "layer_norm_epsilon": 0.02, "rms_norm_eps": ..., "head_dim": ...,
        "num_key_value_heads": ..., "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1,
        "tie_word_embeddings": True, "intermediate_size": ..., "n_inner": 56,
        "max_position_embeddings": ..., "n_positions": 256, "resid_pdrop": 0.0,
    },
    shapes={"odd": {"n_inner": None}},
    switches={"tie_word_embeddings": False},
    moves=[{"layer_norm_epsilon": 0.021}, {"activation_function": "relu"}],
    refused=[({"scale_attn_weights": False}, "scale_attn_weights")],
    gguf=[GGUF("gpt2", tensors=untransposed, values=lambda config: {
        "context_length": config["n_positions"], "embedding_length": config["n_embd"],
        "feed_forward_length": config["n_inner"] or 4 * config["n_embd"],
        "attention.head_count": config["n_head"], "block_count": config["n_layer"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "attention.key_length": None, "attention.value_length": None, "rope.freq_base": None,
    })],
)  # fmt: skip
FAMILIES = [
    OLMO3, SEED_OSS, ARCEE, ERNIE, EXAONE4, COHERE, COHERE2, GLM4, GLM, GEMMA, HELIUM, STABLELM,
    MINISTRAL3, APERTUS, GPT2,
]  # fmt: skip
