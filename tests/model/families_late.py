"""Families that came after those of their makers' neighbours, for `test_every_family.py`."""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

import checkpoints
import torch
import transformers
from families_dense import GEMMA2, LLAMA3, USUAL
from families_mixed import LAYERS, ROPE, by_kind
from family_harness import Family
from gguf_files import GGUF
from transformers import conversion_mapping
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.step3p7 import modeling_step3p7 as step

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


def hy_names(config, name, values):
    """Names of HunYuan 3's experts as its converter maps them."""
    layer = re.search(r"layers\.(\d+)\.", name)
    for own, other in (
        ("mlp.router.gate", "mlp.gate"), ("mlp.shared_mlp", "mlp.shared_experts"),
    ):  # fmt: skip
        name = name.replace(own, other)
    return {f"blk.{layer[1]}.exp_probs_b" if name.endswith("expert_bias") else name: values}


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
    elsewhere=frozenset({"num_nextn_predict_layers"}),
    gguf=[GGUF("hy_v3", names="step35", geometries=("wide", "odd"), tensors=hy_names,
               values=lambda config: {
        "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_intermediate_size"],
        "expert_weights_norm": True, "expert_weights_scale": config["router_scaling_factor"],
        "expert_gating_func": 2,
    })],
)  # fmt: skip


class Step3p7TextForCausalLM(step.Step3p7PreTrainedModel):
    """The text model with its head, which transformers has with a tower only."""

    config: transformers.Step3p7TextConfig
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = step.Step3p7TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, ids, use_cache=False):
        return CausalLMOutput(logits=self.lm_head(self.model(ids).last_hidden_state))


checkpoints.OWN["Step3p7TextConfig"] = Step3p7TextForCausalLM
# Names of the files, but for the prefixes of text and tower.
conversion_mapping.register_checkpoint_conversion_mapping(
    "Step3p7TextForCausalLM",
    conversion_mapping.get_checkpoint_conversion_mapping("step3p7")[5:],
    overwrite=True,
)


def step_values(config):
    """Metadata of Step, whose lists have an entry for each layer."""
    local = [kind == "sliding_attention" for kind in config["layer_types"]]
    own = config["num_sliding_attention_heads"]
    rope = config[ROPE]
    return {
        "attention.head_count": [own if w else config["num_attention_heads"] for w in local],
        "attention.head_count_kv": [config["num_key_value_heads"]] * len(local),
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": local,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope.get("sliding_attention", {}).get("rope_theta"),
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["share_expert_dim"],
        "expert_weights_scale": config["moe_router_scaling_factor"],
        "expert_weights_norm": True, "leading_dense_block_count": 0, "moe_every_n_layers": 1,
        "swiglu_clamp_exp": config.get("swiglu_limits"),
        "swiglu_clamp_shexp": config.get("swiglu_limits_shared"),
    }  # fmt: skip


def with_bias(config, name, values):
    """The bias of the choice as a tensor of its own module."""
    return {name.replace(".router_bias", ".router_bias.bias"): values}


STEP = Family(
    "step3p7",
    "Step3p7TextConfig",
    base={
        "sliding_window": 9, "moe_intermediate_size": 24, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "share_expert_dim": 20, "pad_token_id": 0,
        "mlp_layer_types": ["dense", "sparse"], ROPE: {
            "full_attention": by_kind(1e3, 300.0, 0.5)["full_attention"],
            "sliding_attention": by_kind(1e3, 300.0, 1.0)["sliding_attention"],
        },
    },
    shapes={
        "wide": {
            "num_key_value_heads": 2, "layer_types": LAYERS[:2], "num_sliding_attention_heads": 6,
        },
        "odd": {
            "head_dim": 12,
            "layer_types": LAYERS, "mlp_layer_types": ["sparse", "dense", "sparse"],
            "swiglu_limits": [0.1, 0.0, 0.2], "swiglu_limits_shared": [0.2, 0.1, 0.0],
        },
    },
    switches={
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "query_pre_attn_scalar": 2, "moe_router_scaling_factor": 1.5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"], ROPE: by_kind(800.0, 500.0, 0.8),
        "swiglu_limits": [0.1, 0.2, 0.3], "swiglu_limits_shared": [0.2, 0.1, 0.3],
    },
    moves=[
        USUAL[0], {"sliding_window": 10}, {"num_experts_per_tok": 3},
        {"moe_router_scaling_factor": 1.6}, {"query_pre_attn_scalar": 21},
        {f"{ROPE}.full_attention.rope_theta": 700.0},
        {f"{ROPE}.sliding_attention.rope_theta": 400.0},
    ],
    sizes=("moe_intermediate_size", "n_routed_experts", "share_expert_dim"),
    elsewhere=frozenset({
        "num_sliding_attention_heads", "per_layer_config",  # sizes by layer
        "num_nextn_predict_layers",
    }),
    refused=[({"per_layer_config": {"0": {"num_attention_heads": 3}}}, "per_layer_config")],
    gguf=[GGUF("step35", norm_offset=1.0, geometries=("wide", "odd"), tensors=with_bias,
               values=step_values)],
)  # fmt: skip
CWM = Family(
    "cwm",
    "CwmConfig",
    base={"sliding_window": 9, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1},
    switches={
        "mlp_bias": True, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        ROPE: LLAMA3,
    },
    moves=[*USUAL, {"sliding_window": 10}, {"layer_types": ["full_attention"] * 3}],
)  # fmt: skip
VAULTGEMMA = dataclasses.replace(
    GEMMA2,
    name="vaultgemma",
    config="VaultGemmaConfig",
    moves=[
        {"rms_norm_eps": 0.2},
        *GEMMA2.moves[1:],
    ],  # rows of the stream are large: none is normed
    gguf=[],
)
SOLAR = Family(
    "solar_open",
    "SolarOpenConfig",
    base={
        "intermediate_size": ..., "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
    shapes={"wide": {"n_group": 2, "topk_group": 1}},
    switches={
        "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "attention_bias": True,
        "norm_topk_prob": False, "routed_scaling_factor": 1.4, "tie_word_embeddings": True,
    },
    moves=[*USUAL, {"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.5}, {"topk_group": 3}],
    elsewhere=frozenset({
        "n_routed_experts", "moe_intermediate_size", "n_shared_experts", "intermediate_size",
    }),
    unread=("intermediate_size",),
    refused=[({"first_k_dense_replace": 1}, "first_k_dense_replace")],
)  # fmt: skip
FAMILIES = [OLMO, HY3, STEP, CWM, VAULTGEMMA, SOLAR]
