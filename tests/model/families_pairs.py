"""Families of differential attention, and others that came last, for `test_every_family.py`."""

from __future__ import annotations

import dataclasses

from families_dense import GRANITE, LLAMA3, USUAL
from families_dense_2 import GPT2
from families_experts import deepseek_tensors
from families_mixed import LAYERS, ROPE
from family_harness import Family
from gguf_files import GGUF, head_width

DIFFLLAMA = Family(
    "diffllama",
    "DiffLlamaConfig",
    shapes={
        "wide": {"num_key_value_heads": 2}, "odd": {"num_key_value_heads": 4},
        "switched": {"num_attention_heads": 8, "num_key_value_heads": 4, ROPE: LLAMA3},
    },
    switches={"attention_bias": True, "tie_word_embeddings": True},
    moves=USUAL,
)  # fmt: skip
OLMO_HYBRID = Family(
    "olmo_hybrid",
    "OlmoHybridConfig",
    base={
        "head_dim": ..., "pad_token_id": 0, "eos_token_id": 1, "rope_parameters": None,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
        "linear_value_head_dim": 10, "num_hidden_layers": 4,
    },
    shapes={
        "odd": {
            "linear_num_key_heads": None, "linear_num_value_heads": None, "num_hidden_layers": 3,
            "linear_key_head_dim": None, "linear_value_head_dim": None,
        },
    },
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "linear_allow_neg_eigval": False,
        ROPE: {"rope_type": "default", "rope_theta": 1e3},
        "layer_types": ["full_attention", *["linear_attention"] * 2, "full_attention"],
    },
    moves=[*USUAL[:2], {f"{ROPE}.rope_theta": 900.0}],
    sizes=(
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim",
    ),
)  # fmt: skip
IQUEST = Family(
    "llama",
    "IQuestCoderConfig",
    title="iquestcoder",
    switches={"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    moves=USUAL,
    elsewhere=frozenset({"sliding_window"}),  # of Mistral
    refused=[({"clip_qkv": 3.0}, "clip_qkv"), ({"use_sliding_window": True}, "use_sliding_window")],
)
HYPERCLOVA = dataclasses.replace(
    GRANITE,
    name="hyperclovax",
    config="HyperCLOVAXConfig",
    base={},
    shapes={"wide": {"head_dim": None}},
    switches={**GRANITE.switches, "use_post_norm": False},
    gguf=[],
)


def sinks(config, name, values):
    """Sinks under a name with an end."""
    return {name + ".weight" * name.endswith("sinks"): values}


def turned(config):
    """Whether each layer rotates, where some do not."""
    thetas = config.get("layer_rope_theta")
    return thetas and [theta > 0 for theta in thetas]


GRANITE_SWA = dataclasses.replace(
    GRANITE,
    name="granite_swa",
    config="GraniteSWAConfig",
    base={**GRANITE.base, "sliding_window": 9, "pad_token_id": 0, "bos_token_id": 0,
          "eos_token_id": 1, "tie_word_embeddings": True},
    shapes={"odd": {"layer_rope_theta": [0, 1e4, 1e4]}},
    switches={
        **GRANITE.switches, "tie_word_embeddings": False, "layer_rope_theta": [0, 500.0, 1e3],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    moves=[
        *(move for move in GRANITE.moves if f"{ROPE}.rope_theta" not in move),
        {"sliding_window": 10}, {"layer_rope_theta": [0, 500.0, 0]},
        {"layer_rope_theta": [0, 600.0, 1e3]},
    ],
    gguf=[GGUF("granite_swa", names="mimo2", permuted=True, geometries=("wide", "odd"),
               tensors=sinks, values=lambda config: {
        **GRANITE.gguf[0].values(config), "rope.dimension_count": head_width(config),
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [k != "full_attention" for k in config["layer_types"]],
        "attention.rope_pattern": turned(config),
    })],
)  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "head_dim": ..., "kv_lora_rank": 12, "q_lora_rank": 10,
    "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "v_head_dim": 10, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def youtu_values(config):
    """Metadata of DeepSeek's converter for a model without experts."""
    turned, latent = config["qk_rope_head_dim"], config["kv_lora_rank"]
    return {
        "attention.head_count_kv": 1, "attention.key_length": latent + turned,
        "attention.value_length": latent, "attention.value_length_mla": config["v_head_dim"],
        "attention.key_length_mla": config["qk_nope_head_dim"] + turned,
        "attention.kv_lora_rank": latent, "attention.q_lora_rank": config["q_lora_rank"],
        "expert_feed_forward_length": config["intermediate_size"], "expert_shared_count": 0,
        "leading_dense_block_count": config["num_hidden_layers"], "rope.dimension_count": turned,
    }  # fmt: skip


YOUTU = Family(
    "youtu",
    "YoutuConfig",
    base=LATENT,
    shapes={"switched": {"num_key_value_heads": 6, "q_lora_rank": None}},
    switches={"attention_bias": True, "tie_word_embeddings": False, "rope_interleave": False},
    moves=[{"rms_norm_eps": 0.03}, *USUAL[1:]],
    sizes=(
        "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    ),
    elsewhere=frozenset({"qk_head_dim"}),
    gguf=[GGUF(
        "deepseek2", geometries=("wide", "odd"), values=youtu_values, tensors=deepseek_tensors,
    )],
)  # fmt: skip
MINISTRAL = Family(
    "ministral",
    "MinistralConfig",
    base={"sliding_window": 9},
    switches={"tie_word_embeddings": True, "layer_types": LAYERS},
    moves=[*USUAL, {"sliding_window": 10}],
)
NANOCHAT = Family(
    "nanochat",
    "NanoChatConfig",
    shapes={"odd": {"final_logit_softcapping": None}},
    switches={
        "attention_bias": True, "tie_word_embeddings": True, "final_logit_softcapping": 2.0,
    },
    moves=[*USUAL, {"final_logit_softcapping": 2.1}],
)  # fmt: skip


def published(config, name, values):
    """EXAONE's tensors by the names of published folders."""
    whole = name.startswith(("lm_head", "transformer."))
    return {name if whole else f"transformer.{name}": values}


EXAONE = Family(
    "exaone",
    "ExaoneConfig",
    base={"embed_dropout": 0.0},
    shapes={"odd": {ROPE: LLAMA3}},
    switches={
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, ROPE: LLAMA3,
    },
    moves=[*USUAL, {f"{ROPE}.factor": 8.3}],
    gguf=[GGUF("exaone", geometries=("wide", "odd"), tensors=published)],
)  # fmt: skip
BIGCODE = dataclasses.replace(
    GPT2,
    name="gpt_bigcode",
    config="GPTBigCodeConfig",
    shapes={
        "odd": {"n_inner": None},
        "switched": {"num_attention_heads": ..., "n_head": 6},  # keys' heads are counted from it
    },
    switches={**GPT2.switches, "multi_query": False},
    sizes=("num_key_value_heads",),
    gguf=[GGUF("starcoder", geometries=("wide", "odd"), values=lambda config: {
        **GPT2.gguf[0].values(config), "attention.head_count_kv": 1,
    })],
)  # fmt: skip
NEO = Family(
    "gpt_neo",
    "GPTNeoConfig",
    base={
        "layer_norm_epsilon": 0.02, "rms_norm_eps": ..., "head_dim": ...,
        "num_key_value_heads": ..., "tie_word_embeddings": True, "window_size": 9,
        "attention_types": [[["global", "local"], 1]], "num_hidden_layers": ..., "num_layers": 2,
        "bos_token_id": 0, "eos_token_id": 1,
    },
    shapes={
        "odd": {
            "attention_types": [[["local"], 2], [["global"], 1]], "intermediate_size": None,
            "num_layers": 3,
        },
        "switched": {"attention_types": [[["global", "local", "local"], 1]], "num_layers": 3},
    },
    switches={"tie_word_embeddings": False},
    moves=[
        {"layer_norm_epsilon": 0.021}, {"activation_function": "relu"}, {"window_size": 10},
        {"attention_layers": ["local", "local"]},
    ],
)  # fmt: skip
FAMILIES = [
    DIFFLLAMA, OLMO_HYBRID, IQUEST, HYPERCLOVA, GRANITE_SWA, YOUTU, MINISTRAL, NANOCHAT, EXAONE,
    BIGCODE, NEO,
]  # fmt: skip
