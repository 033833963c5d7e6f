"""Rotary tables from the parameters of a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import localcontext
from typing import Any

from cortiq.errors import FormatError, shown
from cortiq.models.config import ORIGINAL, BaseConfig, is_number
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import PRECISION, Growth, Yarn, scaling_of, yarn_magnitude

RENAMED: Mapping[str, str] = {
    "original_max_position_embeddings": "original_context",
    "short_factor": "short_factors",
    "long_factor": "long_factors",
}
"""Parameters of config.json that `rope_scaling` calls otherwise."""

DYNAMIC = frozenset({"factor", "original_context"})
"""Parameters of dynamic NTK scaling."""
NEEDS_ORIGINAL = ("llama3", "yarn", "longrope")
"""Types whose original context is the model's own unless the file says otherwise."""

BETA = "llama_4_scaling_beta"
ELSEWHERE = (BETA, "max_position_embeddings")
"""Parameters that no rotary table takes: `grown_table` reads one, the other repeats the model's."""
WORDS: Mapping[str, type] = {"rope_type": str, "type": str, "truncate": bool}
LISTS = frozenset({"short_factor", "long_factor", "factors"})
POSITIVE = frozenset({"rope_theta", "original_max_position_embeddings"})
"""Rope parameters that are not numbers, lists of them, and numbers that cannot be 0."""


def rope_table(config: BaseConfig, context: int, layer_type: str | None = None) -> RopeTable:
    """Return the table of a config's `rope_parameters`, or of their entry for a layer type.

    longrope's choice by length uses `context`, once for all positions.

    Raises
    ------
    UnsupportedError : an unknown type or parameter, by name; "dynamic" in a context in which its
        frequencies would follow from the length.
    FormatError : a parameter that is no number.
    """
    given = dict(config.rope_parameters)
    if layer_type is not None:
        given = of_layer_type(config, layer_type) or given
    if any(isinstance(value, Mapping) for value in given.values()):
        message = f"rope_parameters are per layer type: {sorted(given)}"
        raise FormatError(message, where="config")
    check_rope_values(given, "config")
    given = {key: value for key, value in given.items() if key not in ELSEWHERE}
    kind = given.pop("rope_type", "default")
    theta = float(given.pop("rope_theta", config.default_theta))
    whole = kind == "proportional"  # all pairs are turned, those beyond its share by nothing
    if whole:
        given.setdefault("partial_rotary_factor", 1.0)
    turned = 1.0 if whole else float(given.pop("partial_rotary_factor", config.default_turned))
    if turned > 1:
        message = f"turns {turned:g} times the {config.head_width} elements of a head"
        raise FormatError(message, where="config")
    dim = int(config.head_width * turned)
    parameters = {RENAMED.get(key, key): _plain(value) for key, value in given.items()}
    if kind in NEEDS_ORIGINAL:
        parameters.setdefault("original_context", config.max_position_embeddings)
        if kind != "llama3":
            implied = config.max_position_embeddings / parameters["original_context"]
            parameters.setdefault("factor", implied)
    limit = parameters.get("original_context", config.max_position_embeddings)
    if kind == "dynamic" and parameters.keys() <= DYNAMIC and context <= limit:
        kind, parameters = "default", {}  # it changes nothing before a text is longer than that
    if kind == "longrope":
        parameters["declared_context"] = context
    if kind in ("default", "frequency_factors", "linear"):
        parameters.pop("original_context", None)
    table = RopeTable(theta, dim, scaling_of(kind, parameters))
    table.check()
    return table


def grown_table(config: BaseConfig, table: RopeTable) -> RopeTable | None:
    """Return the queries' table where `llama_4_scaling_beta` lets its amplitude grow, else None.

    It grows at every multiple of the original context, which is the model's own unless given.
    """
    beta, inner = config.rope_parameters.get(BETA), table.scaling
    if not beta or isinstance(inner, Growth):
        return None
    every = config.rope_parameters.get(ORIGINAL, config.max_position_embeddings)
    grown = replace(table, scaling=Growth(inner, float(beta), int(every)))
    grown.check()
    return grown


def yarn_scale(table: RopeTable) -> float:
    """Return YaRN's factor on the attention's scale, if `mscale_all_dim` is given: m².

    m = 0.1·mscale_all_dim·ln(factor) + 1, in decimals as every number of a table.
    """
    scaling = table.scaling
    if not isinstance(scaling, Yarn) or not scaling.mscale_all_dim:
        return 1.0
    with localcontext(PRECISION):
        return float(yarn_magnitude(scaling.factor, scaling.mscale_all_dim) ** 2)


def of_layer_type(config: BaseConfig, kind: str) -> dict[str, Any]:
    """Return the rope parameters of a type of layers; empty where they have none of their own.

    Raises
    ------
    FormatError : the entry for the type is no object.
    """
    given = config.rope_parameters.get(kind, {})
    if not isinstance(given, Mapping):
        raise FormatError(f"the rope parameters of {kind} are {shown(given)}", where="config")
    return dict(given)


def check_rope_values(given: Mapping[str, Any], where: str) -> None:
    """Raise `FormatError` for a rope parameter that is not a valid number, word or list.

    Numbers are finite and not negative; what they mean together is for `RopeTable.check`.
    """
    for key, value in given.items():
        name = key.rpartition(".")[2]
        if name in WORDS:
            good = isinstance(value, WORDS[name])
        elif name in LISTS:
            good = isinstance(value, list | tuple) and all(map(_is_amount, value))
        else:
            good = _is_amount(value) and (value > 0 or name not in POSITIVE)
        if not good:
            raise FormatError(f"the rope parameter {key} is {shown(value)}", where=where)


def _is_amount(value: Any) -> bool:
    return is_number(value) and value >= 0


def _plain(value: Any) -> Any:
    """Convert lists to tuples, so that tables compare and hash."""
    return tuple(float(v) for v in value) if isinstance(value, list | tuple) else value
