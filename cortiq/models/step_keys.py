"""Older configurations of Step in the newer form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.models.config_limits import MAX_LAYERS
from cortiq.models.layer_kinds import GLOBAL, LOCAL

OTHER = ("num_attention_groups", "head_dim", "attention_type")
"""Keys of `attention_other_setting` that repeat others."""
OLDER = {"moe_layers_enum": str | list, "attention_other_setting": dict, "rope_scaling": dict,
         "layer_types": list, "partial_rotary_factors": list}  # fmt: skip
"""Types of keys that `values` reads."""
BY_LAYER = frozenset({
    "layer_types", "mlp_layer_types", "partial_rotary_factors", "rope_theta", "swiglu_limits",
    "swiglu_limits_shared",
})  # fmt: skip
"""Lists of older files that have entries of layers that draft."""


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object in config.json in its newer form.

    Older files list rotary bases and shares by layer, number the layers with experts, and their
    lists have entries of layers that draft, too.
    """
    found, layers = dict(given), given.get("num_hidden_layers")
    if type(layers) is not int or not 0 < layers <= MAX_LAYERS:
        return found  # refused with the other fields
    for name, kinds_of in OLDER.items():
        if not isinstance(found.get(name), kinds_of | None):
            raise FormatError(f"{name} is {shown(found[name])}", where="config")
    drafts = found.get("num_nextn_predict_layers", found.get("num_mtp_layers")) or 0
    padded = (n for n in BY_LAYER & found.keys() if _is_padded(found[n], layers, drafts))
    found |= {name: found[name][:layers] for name in list(padded)}
    if (numbers := found.pop("moe_layers_enum", None)) is not None:
        listed = numbers.split(",") if isinstance(numbers, str) else numbers
        sparse = {str(number).strip() for number in listed}
        kinds = ["sparse" if str(n) in sparse else "dense" for n in range(layers)]
        found.setdefault("mlp_layer_types", kinds)
    if other := found.pop("attention_other_setting", None):
        groups = found.get("num_attention_groups", found.get("num_key_value_heads"))
        own = dict(zip(OTHER, (groups, found.get("head_dim"), LOCAL), strict=True))
        heads = other.get("num_attention_heads", found.get("num_attention_heads"))
        strange = [k for k, v in other.items() if k != "num_attention_heads" and v != own.get(k)]
        if strange:
            message = f"attention_other_setting has {', '.join(strange)} of windowed layers"
            raise UnsupportedError(message, where="config")
        found.setdefault("num_sliding_attention_heads", heads)
    if isinstance(found.get("rope_theta"), list) or "partial_rotary_factors" in found:
        found["rope_parameters"] = _ropes(found, layers)
    return found


def _is_padded(value: Any, layers: int, drafts: Any) -> bool:
    """Return whether a list has entries of the layers that draft, besides the trunk's."""
    return isinstance(value, list) and type(drafts) is int and len(value) == layers + drafts


def _ropes(found: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return rotary parameters by kind of layer, from lists by layer that are taken out."""
    kinds = [str(kind) for kind in found.get("layer_types") or [GLOBAL] * layers]
    theta, scaling = found.pop("rope_theta", 10000.0), found.pop("rope_scaling", None)
    shares = found.pop("partial_rotary_factors", None) or [1.0] * layers
    bases = theta if isinstance(theta, list) else [theta] * layers
    if not len(bases) == len(shares) == len(kinds) == layers:
        raise FormatError("rope_theta or partial_rotary_factors: not one a layer", where="config")
    ropes: dict[str, Any] = {}
    for kind, base, share in zip(kinds, bases, shares, strict=True):
        rope = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
        if ropes.setdefault(kind, rope) != rope:
            message = f"rotary numbers that differ among layers of {kind}"
            raise UnsupportedError(message, where="config")
    if scaling and GLOBAL in ropes:
        ropes[GLOBAL] |= scaling
    return ropes
