"""Families with recurrent layers as llama.cpp's converter writes them: metadata and tensors."""

from __future__ import annotations

import re

import numpy as np

LINEAR, FULL = "linear_attention", "full_attention"


def delta_values(config):
    """Metadata of delta nets, with attention in every so many layers."""
    kinds = config["layer_types"]
    return {
        "full_attention_interval": kinds.index(FULL) + 1,
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "rope.dimension_count": int(config["head_dim"] * 0.5),
        "rope.dimension_sections": [1, 1, 0, 0],
        "feed_forward_length": config.get("intermediate_size"),
        "expert_count": config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }


def delta_names(name, values):
    """Convert each tensor: decays unchanged, taps without an axis, norms as 1 + w."""
    if name.endswith(".A_log"):
        values = -np.exp(values)
    if name.endswith("conv1d.weight"):
        values = values[:, 0]
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        values = values + np.float32(1)
    return {name.replace(".dt_bias", ".dt_proj.bias"): values}


def experts_apart(name, values):
    """Gate and up of the experts by themselves."""
    if not name.endswith("experts.gate_up_proj"):
        return {name + ".weight" * name.endswith("experts.down_proj"): values}
    stem, half = name.removesuffix("gate_up_proj"), values.shape[1] // 2
    return {f"{stem}gate_proj.weight": values[:, :half], f"{stem}up_proj.weight": values[:, half:]}


def next_tensors(config, name, values):
    """Rows of q, k, v and z apart, each of all key heads."""
    if not name.endswith("in_proj_qkvz.weight"):
        ((name, values),) = delta_names(name, values).items()
        return experts_apart(name, values)
    heads, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
    value = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    rows = values.reshape(heads, -1, values.shape[-1])
    cuts = np.split(rows, [key, 2 * key, 2 * key + value], axis=1)
    q, k, v, z = (cut.reshape(-1, values.shape[-1]) for cut in cuts)
    stem = name.removesuffix("in_proj_qkvz.weight")
    return {f"{stem}in_proj_qkv.weight": np.concatenate([q, k, v]), f"{stem}in_proj_z.weight": z}


def tiled(values, config, dim, axis=0):
    """Value heads of `dim` along an axis: the first of every key head, then the second, …"""
    heads = config["linear_num_key_heads"]
    apart = np.moveaxis(values, axis, 0)
    split = apart.reshape(heads, -1, dim, *apart.shape[1:]).swapaxes(0, 1).reshape(apart.shape)
    return np.moveaxis(split, 0, axis)


def tiled_tensors(config, name, values):
    """Value heads in another order, wherever there are rows or columns of them."""
    dim, part = config["linear_value_head_dim"], name.rpartition("linear_attn.")[2]
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        values = np.concatenate([values[:keys], tiled(values[keys:], config, dim)])
    elif part == "in_proj_z.weight":
        values = tiled(values, config, dim)
    elif part == "out_proj.weight":
        values = tiled(values, config, dim, axis=1)
    elif part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        values = tiled(values, config, 1)
    ((name, values),) = delta_names(name, values).items()
    return experts_apart(name, values)


def mamba_tensors(config, name, values, groups):
    """Decays and skips as columns, the norm's parts one below the other, taps without an axis."""
    part = name.rpartition(".")[2]
    if part == "A_log":
        return {name: -np.exp(values)[:, None]}
    if part == "D":
        return {name: values[:, None]}
    if part == "dt_bias":
        return {name.replace("dt_bias", "dt_proj.bias"): values}
    if name.endswith("conv1d.weight"):
        return {name: values[:, 0]}
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return {name: values.reshape(groups, -1)}
    return {name: values}


def granite_values(config):
    """Metadata of Granite 4: KV heads of the layers that attend."""
    heads, inner = config["num_key_value_heads"], config["mamba_expand"] * config["hidden_size"]
    return {
        "attention.head_count_kv": [heads * (k in (FULL, "attention")) for k in kinds_of(config)],
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
        "expert_count": config["num_local_experts"] or None,
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": inner,
    }


def kinds_of(config):
    """Return the mixer of each layer."""
    return config.get("layer_types") or config["layers_block_type"]


def granite_tensors(config, name, values):
    """Gate and up apart; the MLP is an expert for all where there are experts."""
    layer, _, rest = name.partition(".block_sparse_moe.")
    if rest == "input_linear.weight":
        half = values.shape[1] // 2
        stem = f"{layer}.block_sparse_moe.experts"
        return {f"{stem}.w1.weight": values[:, :half], f"{stem}.w3.weight": values[:, half:]}
    layer, _, rest = name.partition(".shared_mlp.")
    block = "mlp.shared_experts" if config["num_local_experts"] else "mlp"
    if rest == "input_linear.weight":
        half = len(values) // 2
        stem = f"{layer}.{block}"
        return {
            f"{stem}.gate_proj.weight": values[:half], f"{stem}.up_proj.weight": values[half:],
        }  # fmt: skip
    if rest == "output_linear.weight":
        return {f"{layer}.{block}.down_proj.weight": values}
    name = name.replace("mamba.dt_bias", "linear_attn.dt_bias")
    return mamba_tensors(config, name, values, config.get("mamba_n_groups"))


def nemotron_values(config):
    """Metadata of Nemotron H: layers are known by their KV heads and widths."""
    kinds, heads = config["layers_block_type"], config["num_key_value_heads"]
    moe, width = "moe" in kinds, config["moe_intermediate_size"]
    width = width if moe else config["intermediate_size"]
    experts = {
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": 1, "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["n_group"], "moe_latent_size": config.get("moe_latent_size"),
    }  # fmt: skip
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": [heads * (k in (FULL, "attention")) for k in kinds],
        "feed_forward_length": [width * (k in ("moe", "mlp")) for k in kinds],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.time_step_rank": config["mamba_num_heads"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        **(experts if moe else {}),
    }


def nemotron_tensors(config, name, values):
    """Experts stacked, and what all Mamba-2 layers have done to them."""
    if match := re.search(r"layers\.(\d+)\.mixer\.experts\.(up|down)_proj", name):
        return {f"model.layers.{match[1]}.mlp.experts.{match[2]}_proj.weight": values}
    if name.endswith("dt_bias"):
        return {name.replace("dt_bias", "dt.bias"): values}
    return mamba_tensors(config, name, values, config["n_groups"])


def kimi_values(config):
    """Metadata of Kimi Linear: one KV head where attention is latent, none elsewhere."""
    rope = config["qk_rope_head_dim"]
    kinds = config["layer_types"]
    return {
        "attention.head_count_kv": [int(k == FULL) for k in kinds],
        "attention.key_length": config["kv_lora_rank"] + rope,
        "attention.value_length": None,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "rope.dimension_count": rope,
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_gating_func": 2,
        "leading_dense_block_count": 1,
        "kda.head_dim": config["linear_head_dim"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
    }


def kimi_tensors(config, name, values):
    """Keys' and values' matrices of latent attention apart, those of keys transposed."""
    if name.endswith("conv1d.weight"):
        return {name: values.reshape(1, len(values), 1, -1)}
    if name.endswith(".A_log"):
        return {name: -np.exp(values)}
    if name.endswith(".dt_bias"):
        return {name.replace(".dt_bias", ".dt_proj.bias"): values}
    if name.endswith("kv_b_proj.weight"):
        heads = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
        keys, rows = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
        stem = name.removesuffix("kv_b_proj.weight")
        keys = np.ascontiguousarray(keys.swapaxes(1, 2))
        return {f"{stem}k_b_proj.weight": keys, f"{stem}v_b_proj.weight": rows}
    if re.search(r"block_sparse_moe\.(gate|up|down)_proj", name):
        name = name.replace("block_sparse_moe", "mlp")
    return {name: values}
