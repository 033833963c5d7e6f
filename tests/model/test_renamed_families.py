"""Families that transformers lacks: folders of a class of it that computes the same, renamed.

InternLM 2 is Llama with q, k and v in one matrix, MiniCPM is Granite with other factors, Ling 2 is
GLM 4.5 with q, k and v in one matrix, Kimi K2.5 holds a DeepSeek V3 and Phi 4 multimodal a Phi 3.
So transformers' model in double is their oracle, too.
"""

from __future__ import annotations

import json
import math
import re

import pytest

pytest.importorskip("transformers")

import numpy as np
from checkpoints import Case, write
from family_harness import COMMON, GEOMETRIES, POSITIONS, changed, distance, logits_of
from gguf_files import GGUF, write_gguf
from safetensors.numpy import load_file, save_file

from cortiq.errors import UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program

LLAMA = {"hidden_act": "silu"}
GRANITE = {"attention_multiplier": ..., "embedding_multiplier": 3.0, "logits_scaling": 4.0}
GLM = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_group": 4,
    "topk_group": 2, "routed_scaling_factor": 1.7, "use_qk_norm": True, "first_k_dense_replace": 1,
}  # fmt: skip
SWITCHED = {
    "internlm2": {"attention_bias": True, "tie_word_embeddings": True},
    "minicpm": {"attention_bias": True, "tie_word_embeddings": True, "embedding_multiplier": 0.5},
    "bailing_moe_v2": {
        "attention_bias": True, "use_qk_norm": False, "n_shared_experts": 2, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": False, "first_k_dense_replace": 2,
    },
}  # fmt: skip


def by_group(config, tensors, name, order):
    """q, k and v of a layer in one matrix: of each group, or one after the other."""
    parts = [tensors[name.replace("q_proj", f"{role}_proj")] for role in "qkv"]
    groups = config["num_key_value_heads"] if order == "groups" else 1
    rows = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(rows, axis=1).reshape(-1, *parts[0].shape[1:])


def renamed(config, tensors, names, joint, order):
    """Tensors under other names, with q, k and v in `joint`."""
    found = {}
    for name, values in tensors.items():
        if re.search(r"\.[kv]_proj\.", name):
            continue
        if ".q_proj." in name:
            values, name = by_group(config, tensors, name, order), name.replace("q_proj", joint)
        for theirs, mine in names.items():
            name = re.sub(theirs, mine, name)
        found[name] = values
    return found


def internlm2(config, tensors):
    names = {
        "embed_tokens": "tok_embeddings", "lm_head": "output", "self_attn": "attention",
        "o_proj": "wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    tensors = renamed(config, tensors, names, "wqkv", "groups")
    unread = ("attention_bias", "mlp_bias", "head_dim")
    kept = {key: value for key, value in config.items() if key not in unread}
    rope = {"rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    kept.pop("rope_parameters")
    own = {"head_dim": config["head_dim"], "bias": config["attention_bias"]}
    return {**kept, **rope, **own}, tensors


def minicpm(config, tensors):
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    factors = {
        "scale_emb": config.pop("embedding_multiplier"),
        "scale_depth": config.pop("residual_multiplier") * math.sqrt(layers),
        "dim_model_base": width / config.pop("logits_scaling"),
    }  # fmt: skip
    config.pop("attention_multiplier"), config.pop("mlp_bias")
    return {**config, **factors}, tensors


def bailing_moe_v2(config, tensors):
    names = {
        "embed_tokens": "word_embeddings", "self_attn": "attention", "o_proj": "dense",
        "q_norm": "query_layernorm", "k_norm": "key_layernorm",
        "gate.e_score_correction_bias": "gate.expert_bias",
    }  # fmt: skip
    tensors = renamed(config, tensors, names, "query_key_value", "roles")
    moved = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts",
             "attention_bias": "use_qkv_bias"}  # fmt: skip
    config = {moved.get(key, key): value for key, value in config.items()}
    return {**config, "score_function": "sigmoid", "moe_router_enable_expert_bias": True}, tensors


def kimi_k25(config, tensors):
    """Kimi K2.5: DeepSeek V3 beside a vision tower."""
    tensors = {f"language_model.{name}": values for name, values in tensors.items()}
    tensors |= {"vision_tower.x.weight": np.zeros((2, 2), np.float32)}
    text = {**config, "model_type": "kimi_k2"}
    return {"text_config": text, "vision_config": {}, "media_placeholder_token_id": 5}, tensors


def phi4mm(config, tensors):
    """Phi 4 multimodal as published: adapters and towers beside Phi 3's tensors."""
    extra = np.zeros((2, 2), np.float32)
    found = {"model.embed_tokens_extend.image_embed.x.weight": extra}
    for name, values in tensors.items():
        stem = name.removesuffix(".weight")
        is_based = stem.endswith("_proj")
        found[f"{stem}.base_layer.weight" if is_based else name] = values
        if is_based:
            found |= {f"{stem}.lora_{side}.speech.weight": extra for side in "AB"}
    return {**config, "embd_layer": {}, "vision_lora": {"r": 2}, "full_attn_mod": 1}, found


def phi4_multimodal(config, tensors):
    """The same as transformers saves it: the text model's keys beside the others'."""
    tensors["model.embed_tokens_extend.image_embed.x.weight"] = np.zeros((2, 2), np.float32)
    return {**config, "vision_config": {}, "audio_config": {"hidden_size": 3}}, tensors


LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 14, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
    "v_head_dim": 12, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "head_dim": 6,
}  # fmt: skip
SWITCHED |= {key: {"sliding_window": 9} for key in ("phi4mm", "phi4_multimodal")}
SWITCHED["kimi_k25"] = {"rope_interleave": False, "tie_word_embeddings": True}
FAMILIES = {
    "kimi_k25": ("DeepseekV3Config", LATENT, kimi_k25),
    "internlm2": ("LlamaConfig", LLAMA, internlm2),
    "minicpm": ("GraniteConfig", GRANITE, minicpm),
    "bailing_moe_v2": ("Glm4MoeConfig", GLM, bailing_moe_v2),
    "phi4mm": ("Phi3Config", {"pad_token_id": 0}, phi4mm),
    "phi4_multimodal": ("Phi3Config", {"pad_token_id": 0}, phi4_multimodal),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    known = {}

    def get(name, geometry):
        if (name, geometry) in known:
            return known[name, geometry]
        config, base, rename = FAMILIES[name]
        options = {**COMMON, **GEOMETRIES[geometry], **base}
        options |= SWITCHED[name] if geometry == "switched" else {}
        if name == "bailing_moe_v2" and geometry == "odd":
            options["head_dim"] = 12  # half of which is an even number
        if name == "kimi_k25":
            options["num_key_value_heads"] = options["num_attention_heads"]
        if name == "minicpm":
            options["attention_multiplier"] = options["head_dim"] ** -0.5
            options["residual_multiplier"] = 0.7
        case = Case(f"{name}-{geometry}", config, options, positions=POSITIONS)
        model = write(case, tmp_path_factory.mktemp(case.name))
        path, weights = model.folder / "config.json", model.folder / "model.safetensors"
        given, tensors = rename(json.loads(path.read_text()), load_file(weights))
        path.write_text(json.dumps({**given, "model_type": name}))
        save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, weights)
        known[name, geometry] = model
        return model

    return get


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_graph_in_float64_is_transformers_in_double(name, geometry, written):
    model = written(name, geometry)
    assert distance(logits_of(open_checkpoint(model.folder), model.tokens), model.logits) < 1e-5


MOVES = {
    "internlm2": [{"rms_norm_eps": 0.021}, {"rope_theta": 900.0}, {"hidden_act": "relu"}],
    "minicpm": [{"scale_emb": 2.0}, {"scale_depth": 2.0}, {"dim_model_base": 5.0}],
    "bailing_moe_v2": [
        {"routed_scaling_factor": 1.2}, {"topk_group": 3}, {"num_experts_per_tok": 2},
        {"norm_topk_prob": False}, {"rms_norm_eps": 0.021},
        {"rope_parameters.partial_rotary_factor": 1.0},
    ],
}  # fmt: skip
REFUSED = {
    "internlm2": {"rope_scaling": {"type": "spiral"}},
    "minicpm": {"mup_denominator": 9},
    "bailing_moe_v2": {"score_function": "softmax"},
}


@pytest.mark.parametrize("name", MOVES)
def test_options_move_the_logits_or_are_refused(name, written):
    model = written(name, "wide")
    checkpoint = open_checkpoint(model.folder)
    for change in MOVES[name]:
        logits = logits_of(changed(checkpoint, change), model.tokens)
        assert distance(logits, model.logits) > 3e-4, change
    with pytest.raises(UnsupportedError):
        load_program(changed(checkpoint, REFUSED[name]))


def factors(config):
    """Metadata of MiniCPM's converter."""
    return {
        "embedding_scale": config["scale_emb"],
        "residual_scale": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
        "logit_scale": config["hidden_size"] / config["dim_model_base"],
    }  # fmt: skip


def apart(config, name, values):
    """InternLM 2's q, k and v as its converter writes them: apart, rows of q and k in pairs."""
    if ".attn_qkv" not in name and "wqkv" not in name:
        return {name: values}
    groups, heads = config["num_key_value_heads"], config["num_attention_heads"]
    rows = values.reshape(groups, heads // groups + 2, config["head_dim"], -1)
    found = {}
    for role, part in (("q", rows[:, :-2]), ("k", rows[:, -2]), ("v", rows[:, -1])):
        part = part.reshape(-1, config["head_dim"], values.shape[-1])
        if role != "v":
            halves = part.reshape(len(part), 2, -1, values.shape[-1])
            part = halves.swapaxes(1, 2)
        layer = re.search(r"\.(\d+)\.", name)[1]
        found[f"blk.{layer}.attn_{role}.weight"] = part.reshape(-1, values.shape[-1])
    return found


def ling(config):
    """Metadata of Ling 2's converter."""
    head = config["head_dim"]
    return {
        "rope.dimension_count": head // 2,
        "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_shared_feed_forward_length": config["moe_intermediate_size"],
        "expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"],
        "expert_gating_func": 2, "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "leading_dense_block_count": config["first_k_dense_replace"],
    }  # fmt: skip


def with_bias(config, name, values):
    """The bias of Ling 2's choice as a tensor of its own module."""
    return {name.replace(".expert_bias", ".expert_bias.bias"): values}


FILES = [
    ("minicpm", GGUF("minicpm", values=factors, permuted=True)),
    ("internlm2", GGUF("internlm2", tensors=apart)),
    ("bailing_moe_v2", GGUF("bailingmoe2", values=ling, tensors=with_bias)),
]


@pytest.mark.parametrize(("name", "how"), FILES, ids=str)
def test_a_gguf_file_gives_the_same_logits(name, how, written, tmp_path):
    model = written(name, "odd")
    write_gguf(tmp_path / "model.gguf", model.folder, how)
    logits = logits_of(open_checkpoint(tmp_path / "model.gguf"), model.tokens)
    assert distance(logits, model.logits) < 1e-5
