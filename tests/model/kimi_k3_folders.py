"""Tiny checkpoints of Kimi K3: folders as published, GGUF files as llama.cpp's converter writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf_files import emit
from safetensors.numpy import save_file

TEXT: dict[str, Any] = {
    "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "hidden_act": "situ",
    "activation_situ_beta": 1.5, "activation_situ_linear_beta": 2.5, "attn_res_block_size": 2,
    "first_k_dense_replace": 1, "hidden_size": 48, "intermediate_size": 64, "kv_lora_rank": 32,
    "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "latent_moe_use_norm": True, "mla_use_nope": True, "mla_use_output_gate": True,
    "linear_attn_config": {
        "full_attn_layers": [2, 5], "kda_layers": [1, 3, 4], "gate_lower_bound": -5.0,
        "head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4, "use_full_rank_gate": True,
    },
    "max_position_embeddings": 256, "moe_intermediate_size": 32, "moe_layer_freq": 1,
    "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_expert_group": 1, "num_experts": 8, "num_experts_per_token": 3,
    "num_hidden_layers": 5, "num_nextn_predict_layers": 0, "num_shared_experts": 2,
    "rms_norm_eps": 0.02, "routed_expert_hidden_size": 40, "routed_scaling_factor": 1.3,
    "topk_group": 1, "topk_method": "noaux_tc", "use_grouped_topk": True, "vocab_size": 96,
}  # fmt: skip
PADDING = 3
"""Numbers of `A_log` behind those of the heads, which published files have."""


def shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the text model's tensors, by published name."""
    width, heads, inner = c["hidden_size"], c["num_attention_heads"], c["linear_attn_config"]
    rows, dim, kernel = (
        heads * inner["head_dim"],
        inner["head_dim"],
        inner["short_conv_kernel_size"],
    )
    found = {"lm_head": (c["vocab_size"], width), "model.embed_tokens": (c["vocab_size"], width)}
    found |= {"model.norm": (width,)}
    if c["attn_res_block_size"]:
        found |= {"model.output_attn_res_norm": (width,), "model.output_attn_res_proj": (1, width)}
    for n in range(c["num_hidden_layers"]):
        own = {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
        if c["attn_res_block_size"]:
            for part in ("mlp_res", "self_attention_res"):
                own |= {f"{part}_norm": (width,), f"{part}_proj": (1, width)}
        if n + 1 in inner["kda_layers"]:
            mixer = {
                "A_log": (heads + PADDING,), "dt_bias": (rows,), "b_proj": (heads, width),
                "f_a_proj": (dim, width), "f_b_proj": (rows, dim), "o_norm": (dim,),
                "o_proj": (width, rows), "g_proj": (rows, width),
                **{f"{p}_proj": (rows, width) for p in "qkv"},
                **{f"{p}_conv1d": (rows, 1, kernel) for p in "qkv"},
            }  # fmt: skip
            if not inner["use_full_rank_gate"]:
                mixer |= {"g_a_proj": (dim, width), "g_b_proj": (rows, dim)}
                del mixer["g_proj"]
        else:
            latent, nope, rope = (
                c[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
            )
            value, query = c["v_head_dim"], c["q_lora_rank"]
            mixer = {
                "kv_a_layernorm": (latent,), "kv_a_proj_with_mqa": (latent + rope, width),
                "kv_b_proj": (heads * (nope + value), latent), "o_proj": (width, heads * value),
            }  # fmt: skip
            queries = heads * (nope + rope)
            mixer |= {"q_proj": (queries, width)} if not query else {
                "q_a_proj": (query, width), "q_a_layernorm": (query,), "q_b_proj": (queries, query),
            }  # fmt: skip
            if c["mla_use_output_gate"]:
                mixer["g_proj"] = (heads * value, width)
        own |= {f"self_attn.{name}": shape for name, shape in mixer.items()}
        own |= _mlp(c, n)
        found |= {f"model.layers.{n}.{name}": shape for name, shape in own.items()}
    bare = ("A_log", "dt_bias", "e_score_correction_bias")
    return {n if n.endswith(bare) else f"{n}.weight": shape for n, shape in found.items()}


def _mlp(c: dict[str, Any], n: int) -> dict[str, tuple[int, ...]]:
    width, moe = c["hidden_size"], "block_sparse_moe"

    def gated(prefix: str, inner: int) -> dict[str, tuple[int, ...]]:
        return {f"{prefix}.{p}_proj": (inner, width) for p in ("gate", "up")} | {
            f"{prefix}.down_proj": (width, inner)
        }

    if n < c["first_k_dense_replace"]:
        return gated("mlp", c["intermediate_size"])
    inner, experts, latent = (
        c[k] for k in ("moe_intermediate_size", "num_experts", "routed_expert_hidden_size")
    )
    found = {f"{moe}.gate": (experts, width), f"{moe}.gate.e_score_correction_bias": (experts,)}
    for e in range(experts):
        one, other = (inner, latent or width), (latent or width, inner)
        found |= {f"{moe}.experts.{e}.{w}": one for w in ("w1", "w3")}
        found[f"{moe}.experts.{e}.w2"] = other
    if latent:
        found |= {
            f"{moe}.routed_expert_down_proj": (latent, width),
            f"{moe}.routed_expert_up_proj": (width, latent),
        }
        found |= {f"{moe}.routed_expert_norm": (latent,)} if c["latent_moe_use_norm"] else {}
    return found | gated(f"{moe}.shared_experts", inner * c["num_shared_experts"])


def tensors(c: dict[str, Any], seed: int = 7) -> dict[str, np.ndarray]:
    """Random tensors: gains around 1, scores of mixes large enough that they matter."""
    dice, found = np.random.default_rng(seed), {}
    for name, shape in shapes(c).items():
        values = dice.standard_normal(shape)
        if len(shape) == 1 and "norm" in name:
            values = 1 + 0.3 * values
        elif "res_proj" in name:
            values *= 0.3
        elif len(shape) == 1:
            values *= 0.5
        else:
            values *= 1.4 / np.sqrt(shape[-1])
        found[name] = values.astype(np.float32)
    return found


def write(folder: Path, c: dict[str, Any], given: dict[str, np.ndarray]) -> None:
    """Write a folder as published: a text model beside a tower, under prefixes."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"model_type": "kimi_k3", "text_config": c, "media_placeholder_token_id": 90}
    whole |= {"architectures": ["KimiK3ForConditionalGeneration"], "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(whole | {"tie_word_embeddings": False}))
    named = {f"language_model.{name}": values for name, values in given.items()}
    named |= {"vision_tower.patch_embed.proj.weight": np.zeros((2, 2), np.float32)}
    save_file(named, folder / "model.safetensors")


GGUF_NAMES = {
    "lm_head": "output", "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "q_a_proj": "attn_q_a", "q_a_layernorm": "attn_q_a_norm", "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa", "kv_a_layernorm": "attn_kv_a_norm",
    **{f"{p}_proj": f"attn_{p}" for p in "qkv"}, "o_proj": "attn_output",
    **{f"{p}_conv1d": f"ssm_conv1d_{p}" for p in "qkv"}, "f_a_proj": "ssm_f_a",
    "f_b_proj": "ssm_f_b", "b_proj": "ssm_beta", "o_norm": "ssm_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "gate": "ffn_gate_inp", "routed_expert_down_proj": "ffn_routed_down",
    "routed_expert_up_proj": "ffn_routed_up", "routed_expert_norm": "ffn_routed_norm",
    **{f"shared_experts.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")},
}  # fmt: skip
"""llama.cpp's names of tensors that are written as they are."""
STACKS = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"}
SCORES = {"self_attention_res": "attn_res_score", "mlp_res": "ffn_res_score"}


def write_gguf(path: Path, c: dict[str, Any], given: dict[str, np.ndarray]) -> None:
    """Write a GGUF file as llama.cpp's converter does."""
    inner, found, stacks = c["linear_attn_config"], {}, {}
    for name, values in given.items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        blk = f"blk.{layer[1]}." if layer else ""
        stem = name.removeprefix(layer[0] if layer else "").removesuffix(".weight")
        stem = stem.removeprefix("self_attn.").removeprefix("block_sparse_moe.")
        expert = re.fullmatch(r"experts\.\d+\.(w\d)", stem)
        if expert:
            stacks.setdefault(f"{blk}{STACKS[expert[1]]}.weight", []).append(values)
        elif stem.endswith("_res_norm"):
            own = stem.removesuffix("_norm")
            score = SCORES.get(own, "output_res_score")
            found[f"{blk}{score}.weight"] = values * given[name.replace("norm", "proj")][0]
        elif stem.endswith("_res_proj"):
            continue
        elif stem == "A_log":
            found[f"{blk}ssm_a"] = -np.exp(values[: c["num_attention_heads"]])
        elif stem == "dt_bias":
            found[f"{blk}ssm_dt.bias"] = values
        elif stem == "gate.e_score_correction_bias":
            found[f"{blk}exp_probs_b.bias"] = values
        elif stem == "g_proj":
            delta = int(layer[1]) + 1 in inner["kda_layers"]
            found[f"{blk}{'ssm_g' if delta else 'attn_gate'}.weight"] = values
        elif stem == "kv_b_proj":
            heads = values.reshape(c["num_attention_heads"], -1, values.shape[-1])
            k, v = np.split(heads, [c["qk_nope_head_dim"]], axis=1)
            found[f"{blk}attn_k_b.weight"], found[f"{blk}attn_v_b.weight"] = k.swapaxes(1, 2), v
        else:
            if stem.endswith("conv1d"):
                values = values.reshape(1, len(values), 1, -1)
            found[f"{blk}{GGUF_NAMES[stem]}.weight"] = values
    found |= {name: np.stack(parts) for name, parts in stacks.items()}
    emit(path, "kimi-k3", metadata(c), found)


def metadata(c: dict[str, Any]) -> dict[str, Any]:
    """The file's own keys, without their prefix."""
    inner, rope = c["linear_attn_config"], c["qk_rope_head_dim"]
    plain = {
        "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
        "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps", "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_token", "attention.q_lora_rank": "q_lora_rank",
        "attention.kv_lora_rank": "kv_lora_rank", "rope.dimension_count": "qk_rope_head_dim",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "num_shared_experts", "expert_weights_norm": "moe_renormalize",
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_latent_length": "routed_expert_hidden_size",
        "activation.situ_beta": "activation_situ_beta",
        "attn_res.block_size": "attn_res_block_size", "attention.value_length_mla": "v_head_dim",
    }  # fmt: skip
    kinds = [int(n + 1 in inner["full_attn_layers"]) for n in range(c["num_hidden_layers"])]
    return {key: c[name] for key, name in plain.items()} | {
        "attention.head_count_kv": kinds, "expert_gating_func": 2,
        "ssm.conv_kernel": inner["short_conv_kernel_size"], "kda.head_dim": inner["head_dim"],
        "kda.gate_lower_bound": inner["gate_lower_bound"],
        "attention.key_length": c["kv_lora_rank"] + rope,
        "attention.value_length": c["kv_lora_rank"],
        "attention.key_length_mla": c["qk_nope_head_dim"] + rope,
        "activation.situ_linear_beta": c["activation_situ_linear_beta"] or 0.0,
    }  # fmt: skip
