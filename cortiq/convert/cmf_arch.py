"""The header of a CMF file: the architecture, from the configuration of the family.

Whether the header says everything is not left to this table: `check_arch` reads it again as a
file would be, builds that graph, and compares it with the model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.cmf.families import TYPES, family_of
from cortiq.formats.cmf.fields import read_fields
from cortiq.formats.cmf.header import FULL, SLIDING, Arch
from cortiq.formats.mapped import TensorInfo
from cortiq.models.config import config_from_json
from cortiq.models.registry import families

KINDS = {theirs: mine for mine, theirs in TYPES.items()}
ACTIVATION_NAMES = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
}  # fmt: skip
QUANT_TYPES = {"f32": "F32", "f16": "F16", "q8_row": "Q8_ROW", "q8_2f": "Q8_2F", "vbit": "VBIT"}
"""Labels by the encoding of most matrices; the others' are those that the original gives them."""


def arch_of(family: str, config: Any) -> dict[str, Any]:
    """Return the header's `arch` of a model.

    Raises
    ------
    UnsupportedError : the format has no way to describe this family.
    """
    if family not in OWN:
        hint = f"families that it describes: {', '.join(sorted(OWN))}"
        raise UnsupportedError(f"CMF does not describe models of the family {family!r}",
                               where="convert", hint=hint)  # fmt: skip
    common = {
        "arch_name": family,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_kv_heads": config.kv_heads,
        "head_dim": config.head_width,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rms_norm_eps": getattr(config, "rms_norm_eps", None) or config.norm_eps,
        "hidden_act": _activation(config),
        "layer_types": [FULL] * config.num_hidden_layers,
        **_rope(config),
    }
    found = {**common, **OWN[family](config)}
    return {key: value for key, value in found.items() if value is not None}


def _activation(config: Any) -> str:
    name = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu")
    if name not in ACTIVATION_NAMES:
        raise UnsupportedError(f"CMF has no activation {name!r}", where="convert")
    return ACTIVATION_NAMES[name]


def _rope(config: Any) -> dict[str, Any]:
    """Return the keys of rotary embedding."""
    given = dict(config.rope_parameters)
    if any(isinstance(value, Mapping) for value in given.values()):
        given = dict(given.get("full_attention", {}))
    kind = given.get("rope_type", "default")
    found: dict[str, Any] = {
        "rope_theta": given.get("rope_theta", config.default_theta),
        "partial_rotary_factor": given.get("partial_rotary_factor", config.default_turned),
    }
    if kind == "yarn":
        names = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
                 "attention_factor", "mscale_all_dim")  # fmt: skip
        found["yarn"] = {name: given[name] for name in names if given.get(name) is not None}
    elif kind == "frequency_factors":
        found["rope_freq_factors"] = list(given["factors"])
    elif kind != "default":
        raise UnsupportedError(f"CMF has no rotary embedding of the type {kind!r}", where="convert")
    return found


def _windows(config: Any) -> dict[str, Any]:
    windows = config.windows()
    return {
        "layer_types": [FULL if window is None else SLIDING for window in windows],
        "sliding_window": max((w for w in windows if w is not None), default=None),
    }


def _llama(config: Any) -> dict[str, Any]:
    window = config.sliding_window
    kind = FULL if window is None else SLIDING
    return {"layer_types": [kind] * config.num_hidden_layers, "sliding_window": window}


def _experts(config: Any) -> dict[str, Any]:
    shared = getattr(config, "shared_expert_intermediate_size", None)
    moe = {
        "num_experts": config.num_experts,
        "top_k": config.num_experts_per_tok,
        "moe_intermediate_size": config.moe_intermediate_size,
        "norm_topk_prob": getattr(config, "norm_topk_prob", True),
        **({} if shared is None else {"shared_expert_intermediate_size": shared}),
    }
    return {"moe": moe}


def _mixtral(config: Any) -> dict[str, Any]:
    moe = {
        "num_experts": config.num_local_experts, "top_k": config.num_experts_per_tok,
        "moe_intermediate_size": config.intermediate_size, "norm_topk_prob": True,
    }  # fmt: skip
    return {**_llama(config), "moe": moe}


def _hybrid(config: Any) -> dict[str, Any]:
    names = ("linear_conv_kernel_dim", "linear_num_key_heads", "linear_num_value_heads",
             "linear_key_head_dim", "linear_value_head_dim")  # fmt: skip
    return {
        "norm_style": "gemma",
        "layer_types": [KINDS[kind] for kind in config.kinds()],
        **{name: getattr(config, name) for name in names},
    }


def _gemma(config: Any) -> dict[str, Any]:
    return {"norm_style": "gemma", "embed_multiplier": math.sqrt(config.hidden_size)}


def _gemma2(config: Any) -> dict[str, Any]:
    return {
        **_gemma(config), **_windows(config),
        "query_pre_attn_scalar": float(config.query_scale**-2),
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
    }  # fmt: skip


def _gemma3(config: Any) -> dict[str, Any]:
    local = config.rope_parameters.get("sliding_attention", {}).get("rope_theta")
    return {**_gemma2(config), "rope_local_base_freq": local or config.rope_local_base_freq}


def _lfm2(config: Any) -> dict[str, Any]:
    kinds = [KINDS["full_attention" if attends else "conv"] for attends in config.attends()]
    sizes = {"layer_types": kinds, "linear_conv_kernel_dim": config.conv_L_cache}
    return {**sizes, "intermediate_size": config.inner}


def _lfm2_moe(config: Any) -> dict[str, Any]:
    found = _experts(config)
    found["moe"] |= {
        "router_sigmoid": True, "routed_scaling_factor": config.routed_scaling_factor,
    }  # fmt: skip
    kinds = [KINDS[kind] for kind in config.kinds()]
    return {**found, "layer_types": kinds, "linear_conv_kernel_dim": config.conv_L_cache}


OWN: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _windows,
    "qwen3": _windows,
    "mixtral": _mixtral,
    "qwen2_moe": lambda config: {**_windows(config), **_experts(config)},
    "qwen3_moe": _experts,
    "qwen3_5": _hybrid,
    "qwen3_5_moe": lambda config: {
        **_hybrid(config), **_experts(config), "intermediate_size": config.moe_intermediate_size,
    },
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
}  # fmt: skip
"""Fields of `arch` by family, beside the common sizes."""


def check_arch(
    arch: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], family: str, config: Any
) -> None:
    """Check that a file with this `arch` and these tensors is read as the model it is made of.

    Raises
    ------
    UnsupportedError : its graph would be another one: the format cannot say what is different.
    """
    tensors = {name: TensorInfo(name, shape, "F32", 0, 0, 0, 0) for name, shape in shapes.items()}
    where = "convert"
    try:
        found = family_of(read_fields(Arch, arch, "arch"), tensors, where)
        module = families()[found.architecture]
        given = {key: value for key, value in found.config.items() if value is not None}
        theirs = config_from_json(module.Config, module.KEYS, given, where="arch")
        context = config.max_position_embeddings
        read = module.build(theirs, context)
        mine = import_module(f"cortiq.models.{family}")
        own = mine.build(replace(config, source="huggingface"), context)
    except (FormatError, AttributeError, TypeError) as error:
        raise UnsupportedError(f"cannot be told of in CMF: {error}", where=where) from error
    if read.graphs != own.graphs or read.slots != own.slots:
        what = f"is a model of {family} that CMF's header cannot describe in full"
        hint = "a folder of cortiq's holds it: leave off .cmf"
        raise UnsupportedError(what, where=where, hint=hint)


def quant_type(encodings: Mapping[str, int]) -> str:
    """Return the label of a file, by the bytes in each encoding."""
    most = max(encodings, key=encodings.__getitem__)
    if most.startswith("q4") or most == "q2tp":
        return "Q4_BLOCK"
    return QUANT_TYPES.get(most, "BF16" if most == "bf16" else "VBIT")
