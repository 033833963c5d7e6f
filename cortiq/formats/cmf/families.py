"""The family of a CMF model, by the tensors it has: its configuration as config.json would say it.

The format describes a model by sizes and by which tensors there are, whatever its `arch_name`. What
families of ours call otherwise is renamed; a part that no family has is an error that names it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cortiq.errors import UnsupportedError
from cortiq.formats.cmf.header import CONV, FULL, LINEAR, SLIDING, Arch
from cortiq.formats.cmf.presence import ACTIVATIONS, Presence, Tensors, unread_parts

Names = Mapping[str, str]

TYPES: Names = {
    FULL: "full_attention", SLIDING: "sliding_attention", LINEAR: "linear_attention", CONV: "conv",
}  # fmt: skip
"""Types of layers, as config.json calls them."""
MTP: Names = {
    "model.mtp.eh_proj.": "mtp.fc.", "model.mtp.enorm.": "mtp.pre_fc_norm_embedding.",
    "model.mtp.hnorm.": "mtp.pre_fc_norm_hidden.", "model.mtp.": "mtp.",
}  # fmt: skip
"""Names of a draft head by their beginnings, and Qwen's."""
LFM2: Names = {
    "model.norm.": "model.embedding_norm.", "input_layernorm.": "operator_norm.",
    "post_attention_layernorm.": "ffn_norm.", "self_attn.o_proj.": "self_attn.out_proj.",
    "self_attn.q_norm.": "self_attn.q_layernorm.", "self_attn.k_norm.": "self_attn.k_layernorm.",
    "short_conv.": "conv.", "mlp.expert_bias": "feed_forward.expert_bias",
    "mlp.gate.": "feed_forward.gate.", "gate_proj.": "w1.", "up_proj.": "w3.", "down_proj.": "w2.",
    "mlp.": "feed_forward.",
}  # fmt: skip
MIXTRAL: Names = {
    "mlp.gate.": "block_sparse_moe.gate.", "mlp.experts.": "block_sparse_moe.experts.",
    "gate_proj.": "w1.", "up_proj.": "w3.", "down_proj.": "w2.",
}  # fmt: skip


class Family(NamedTuple):
    """A family: its `model_type`, its own keys of config.json, and its names by the file's."""

    architecture: str
    config: dict[str, Any]
    names: Names = MappingProxyType({})


def family_of(arch: Arch, tensors: Tensors, where: str) -> Family:
    """Return the family that reads a model, with its whole configuration.

    Raises
    ------
    UnsupportedError : the model has a part that none of them reads; it is named.
    """
    has = Presence(arch, tensors)
    for problem in unread_parts(arch, has):
        raise UnsupportedError(
            f"has {problem}", where=where,
            hint="cortiq reads no such part from CMF files; convert the model from its own files",
        )  # fmt: skip
    found = _find(arch, has)
    config = {**_common(arch), "model_type": found.architecture, **found.config}
    return found._replace(config=config)


def renamed(names: Names, tensors: Tensors) -> dict[str, str]:
    """Return the file's name of each tensor by its family's."""
    found = {}
    for name in tensors:
        head = next((own for own in MTP if name.startswith(own)), None)
        if head is not None:
            found[MTP[head] + name.removeprefix(head)] = name
        else:
            found[_renamed(name, names)] = name
    return found


def _renamed(name: str, names: Names) -> str:
    layer = re.match(r"model\.layers\.\d+\.", name)
    start = layer[0] if layer else ""
    rest = name.removeprefix(start)
    for theirs, mine in names.items():
        at = 0 if rest.startswith(theirs) else rest.find("." + theirs) + 1
        if rest.startswith(theirs) or at:
            rest = rest[:at] + mine + rest[at + len(theirs) :]
    return start + rest


def _common(arch: Arch) -> dict[str, Any]:
    """Return the keys that every family has."""
    return {
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.hidden_size,
        "intermediate_size": arch.intermediate_size,
        "num_hidden_layers": arch.num_layers,
        "num_attention_heads": arch.num_attention_heads,
        "num_key_value_heads": arch.num_kv_heads,
        "head_dim": arch.head_dim,
        "max_position_embeddings": arch.max_position_embeddings,
        "tie_word_embeddings": arch.tie_word_embeddings,
        "rms_norm_eps": arch.rms_norm_eps,
        "hidden_act": ACTIVATIONS[arch.hidden_act],
        "rope_parameters": rope_of(arch),
    }


def rope_of(arch: Arch) -> dict[str, Any]:
    """Return the rope parameters as transformers 5 writes them."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": arch.rope_theta}
    if arch.partial_rotary_factor != 1.0:
        rope["partial_rotary_factor"] = arch.partial_rotary_factor
    if arch.yarn is not None:
        rope |= {
            "rope_type": "yarn",
            "factor": arch.yarn.factor,
            "original_max_position_embeddings": arch.yarn.original_max_position_embeddings,
            "beta_fast": arch.yarn.beta_fast,
            "beta_slow": arch.yarn.beta_slow,
            "attention_factor": arch.yarn.attention_factor,
        }
    elif arch.rope_freq_factors is not None:
        rope |= {"rope_type": "frequency_factors", "factors": list(arch.rope_freq_factors)}
    return rope


def _find(arch: Arch, has: Presence) -> Family:
    """Return the family by the tensors that layers have, and the keys of its own."""
    if has("linear_attn.A_log"):
        return _qwen_hybrid(arch, has)
    if has("short_conv.conv.weight"):
        return _lfm2(arch, has)
    if arch.norm_style == "gemma":
        return _gemma(arch, has)
    _plain_scales(arch)
    if arch.moe is not None and has("mlp.gate.weight"):
        return _experts(arch, has)
    if has("self_attn.q_norm.weight"):
        if has.info("self_attn.q_norm.weight").shape != (arch.head_dim,):
            _refuse("norms of whole queries, not of their heads")
        return Family("qwen3", {**_windows(arch), "attention_bias": has("self_attn.q_proj.bias")})
    biased, output = has("self_attn.q_proj.bias"), has("self_attn.o_proj.bias")
    if SLIDING in arch.layer_types and not all(kind == SLIDING for kind in arch.layer_types):
        if output or not biased:
            _refuse("windows in some layers only")
        return Family("qwen2", _windows(arch))
    if biased and not output:
        return Family("qwen2", _windows(arch))
    window = arch.sliding_window if SLIDING in arch.layer_types else None
    own = {"attention_bias": biased, "mlp_bias": has("mlp.gate_proj.bias")}
    return Family("llama", own | {"sliding_window": window})


def _refuse(what: str) -> None:
    hint = "cortiq reads no such part from CMF files; convert the model from its own files"
    raise UnsupportedError(f"has {what}", where="arch", hint=hint)


def _plain_scales(arch: Arch) -> None:
    """Refuse scales that only families of Gemma's kind have."""
    if arch.embed_multiplier != 1.0:
        _refuse(f"embeddings times {arch.embed_multiplier:g}")
    if arch.query_pre_attn_scalar not in (None, float(arch.head_dim)):
        _refuse(f"a scale of queries of its own, {arch.query_pre_attn_scalar:g}")
    if arch.final_logit_softcapping or arch.attn_logit_softcapping:
        _refuse("soft-capped logits")


def _types(arch: Arch) -> list[str]:
    return [TYPES[kind] for kind in arch.layer_types]


def _windows(arch: Arch) -> dict[str, Any]:
    """Return Qwen's keys of windows."""
    local = SLIDING in arch.layer_types
    own: dict[str, Any] = {"use_sliding_window": local, "layer_types": _types(arch)}
    return own | {"sliding_window": arch.sliding_window} if local else own


def _routed(arch: Arch, has: Presence) -> dict[str, Any]:
    """Return the keys of experts that Qwen's families share."""
    assert arch.moe is not None
    if arch.moe.router_sigmoid or arch.moe.router_resonance or has("mlp.expert_bias"):
        _refuse("a router that is no softmax")
    if arch.moe.routed_scaling_factor not in (None, 1.0):
        _refuse(f"outputs of experts times {arch.moe.routed_scaling_factor:g}")
    return {
        "num_experts": arch.moe.num_experts,
        "num_experts_per_tok": arch.moe.top_k,
        "moe_intermediate_size": arch.moe.moe_intermediate_size,
    }


def _experts(arch: Arch, has: Presence) -> Family:
    moe, own = arch.moe, _routed(arch, has)
    assert moe is not None
    sparse = has.layers["mlp.gate.weight"]
    dense = [n for n in range(arch.num_layers) if n not in sparse]
    own |= {"norm_topk_prob": moe.norm_topk_prob, "mlp_only_layers": dense}
    if has("self_attn.q_norm.weight"):
        return Family("qwen3_moe", own | {"attention_bias": has("self_attn.q_proj.bias")})
    if has("mlp.shared_expert.gate_proj.weight"):
        own["shared_expert_intermediate_size"] = moe.shared_expert_intermediate_size
        return Family("qwen2_moe", own | {"qkv_bias": has("self_attn.q_proj.bias")})
    if dense or not moe.norm_topk_prob or has("self_attn.q_proj.bias"):
        _refuse("experts of an arrangement that no family has")
    own = {"num_local_experts": moe.num_experts, "num_experts_per_tok": moe.top_k}
    return Family("mixtral", own | {"intermediate_size": moe.moe_intermediate_size}, MIXTRAL)


def _qwen_hybrid(arch: Arch, has: Presence) -> Family:
    own: dict[str, Any] = {"layer_types": _types(arch)}
    for key in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                "linear_value_head_dim", "linear_conv_kernel_dim"):  # fmt: skip
        if getattr(arch, key) is None:
            _refuse(f"layers of linear attention, and no {key}")
        own[key] = getattr(arch, key)
    if arch.norm_style != "gemma":
        _refuse("delta nets under norms of w, not 1 + w")
    if arch.moe is None or not has("mlp.gate.weight"):
        return Family("qwen3_5_text", own)
    if not arch.moe.norm_topk_prob:
        _refuse("experts whose weights are not divided by their sum")
    own |= _routed(arch, has)
    own["shared_expert_intermediate_size"] = arch.moe.shared_expert_intermediate_size
    return Family("qwen3_5_moe_text", own)


def _lfm2(arch: Arch, has: Presence) -> Family:
    _plain_scales(arch)
    own = {"layer_types": _types(arch), "norm_eps": arch.rms_norm_eps}
    own |= {
        "conv_L_cache": arch.linear_conv_kernel_dim or has.info("short_conv.conv.weight").shape[-1]
    }
    own |= {"conv_bias": has("short_conv.conv.bias"), "rms_norm_eps": None, "hidden_act": None}
    own |= {"head_dim": None}
    if arch.moe is None or not has("mlp.gate.weight"):
        return Family("lfm2", own | {"block_auto_adjust_ff_dim": False}, LFM2)
    own |= {
        "num_experts": arch.moe.num_experts, "num_experts_per_tok": arch.moe.top_k,
        "moe_intermediate_size": arch.moe.moe_intermediate_size,
        "norm_topk_prob": arch.moe.norm_topk_prob, "use_expert_bias": has("mlp.expert_bias"),
        "routed_scaling_factor": arch.moe.routed_scaling_factor or 1.0,
        "num_dense_layers": min(has.layers["mlp.gate.weight"]),
    }  # fmt: skip
    return Family("lfm2_moe", own, LFM2)


def _gemma(arch: Arch, has: Presence) -> Family:
    root = math.sqrt(arch.hidden_size)
    if not math.isclose(arch.embed_multiplier, root, rel_tol=1e-6):
        _refuse(f"embeddings times {arch.embed_multiplier:g}, not the root of their width")
    if not has("pre_feedforward_layernorm.weight"):
        if arch.query_pre_attn_scalar not in (None, float(arch.head_dim)):
            _refuse("a scale of queries of its own")
        return Family("gemma", {"attention_bias": has("self_attn.q_proj.bias")})
    own: dict[str, Any] = {
        "layer_types": _gemma_types(arch), "sliding_window": arch.sliding_window,
        "query_pre_attn_scalar": arch.query_pre_attn_scalar or float(arch.head_dim),
        "attn_logit_softcapping": arch.attn_logit_softcapping,
        "final_logit_softcapping": arch.final_logit_softcapping,
        "hidden_act": None, "hidden_activation": ACTIVATIONS[arch.hidden_act],
    }  # fmt: skip
    if not has("self_attn.q_norm.weight"):
        return Family("gemma2", own)
    local = arch.rope_local_base_freq or arch.rope_theta
    return Family("gemma3_text", own | {"rope_local_base_freq": local})


def _gemma_types(arch: Arch) -> list[str]:
    """Return types of layers; a pattern n makes every n-th layer whole, the others windowed."""
    pattern = arch.sliding_window_pattern
    if pattern and SLIDING not in arch.layer_types:
        return [TYPES[SLIDING if (n + 1) % pattern else FULL] for n in range(arch.num_layers)]
    return _types(arch)
