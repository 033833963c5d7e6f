"""Lists of layer kinds in configurations, checked for length and words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cortiq.errors import FormatError
from cortiq.models.config import BaseConfig
from cortiq.models.rope import rope_table
from cortiq.numerics.rope import RopeTable

GLOBAL, LOCAL = "full_attention", "sliding_attention"


def layer_list(
    values: Sequence[str] | None, count: int, kinds: Sequence[str], name: str = "layer_types"
) -> tuple[str, ...]:
    """Return the kind of every layer, as a config lists them.

    Raises
    ------
    FormatError : the list is missing, is not one entry a layer, or names another kind.
    """
    listed = tuple(values or ())
    strange = sorted(set(listed) - set(kinds))
    if len(listed) != count or strange:
        message = f"{name} has {len(listed)} entries for {count} layers"
        if strange:
            message = f"{name} names {', '.join(strange)}"
        raise FormatError(message, where="config", hint=f"a layer is {' or '.join(kinds)}")
    return listed


def alternating_kinds(values: Sequence[str] | None, count: int, period: int) -> tuple[str, ...]:
    """Return the kind of every layer, as listed or, without a list, each `period`th global.

    Raises
    ------
    FormatError : as `layer_list`.
    """
    kinds = [LOCAL if (n + 1) % period else GLOBAL for n in range(count)]
    return layer_list(values or kinds, count, (LOCAL, GLOBAL))


def windows(values: Sequence[str] | None, count: int, window: int | None) -> tuple[int | None, ...]:
    """Return the window of every layer of `layer_types`, `None` for full attention.

    Raises
    ------
    FormatError : as `layer_list`; layers with a window, but none is given.
    """
    kinds = layer_list(values, count, (GLOBAL, LOCAL))
    if window is None and LOCAL in kinds:
        message = f"layer_types has {LOCAL}, but no sliding_window is given or in use"
        raise FormatError(message, where="config")
    return tuple(window if kind == LOCAL else None for kind in kinds)


def sparse_layers(values: Sequence[str] | None, count: int) -> tuple[bool, ...]:
    """Return whether each layer of `mlp_layer_types` has experts; errors as `layer_list`."""
    kinds = layer_list(values, count, ("dense", "sparse"), "mlp_layer_types")
    return tuple(kind == "sparse" for kind in kinds)


def is_stepped_sparse(layer: int, step: int, dense: Sequence[int] | None) -> bool:
    """Return whether a layer has experts: every `step`th one not listed in `dense`."""
    return layer not in (dense or ()) and (layer + 1) % step == 0


def key_sources(kinds: Sequence[str], shared: int) -> tuple[int, ...]:
    """Return the layer that each layer's keys and values come from: itself, or the last alike.

    Parameters
    ----------
    shared : how many layers at the end write none of their own.

    Raises
    ------
    FormatError : a layer shares keys and values that none before it writes.
    """
    first, found = len(kinds) - shared, []
    for n, kind in enumerate(kinds):
        writers = [m for m in range(min(n + 1, first)) if kinds[m] == kind] if n >= first else [n]
        if not writers:
            message = f"layer {n} shares keys and values that no {kind} layer before it writes"
            raise FormatError(message, where="config")
        found.append(writers[-1])
    return tuple(found)


def each_layer(value: Any, count: int, name: str) -> tuple[Any, ...]:
    """Return a value of config.json for every layer: one for all, or a list of one each.

    Raises
    ------
    FormatError : the list has another length.
    """
    if not isinstance(value, tuple):
        return (value,) * count
    if len(value) != count:
        raise FormatError(f"{name} has {len(value)} entries for {count} layers", where="config")
    return value


def by_layer(values: Any, count: int, name: str) -> tuple[Any, ...]:
    """Expand a key's value to one per layer; a list may be longer, for layers that draft.

    Raises
    ------
    FormatError : the list is too short.
    """
    if not isinstance(values, tuple):
        return (values,) * count
    if len(values) < count:
        message = f"{name} has {len(values)} entries for {count} layers"
        raise FormatError(message, where="metadata")
    return values[:count]


def single_count(values: Iterable[int], name: str) -> int | None:
    """Return the one count above 0 in a list by layer, `None` if there is none.

    Raises
    ------
    FormatError : there are several.
    """
    found = sorted(set(values) - {0})
    if len(found) > 1:
        raise FormatError(f"{name} differs by layer: {found}", where="metadata")
    return found[0] if found else None


def layer_ropes(
    config: BaseConfig, context: int, defaults: Mapping[str, Mapping[str, Any]]
) -> dict[str, RopeTable]:
    """Return the rotary table of each kind of layer, for families whose kinds always differ.

    Parameters
    ----------
    defaults : parameters of each kind that the file may leave out.

    Raises
    ------
    FormatError : rope parameters that are not by kind.
    """
    given = config.rope_parameters
    nothing = {"rope_type": "default", "rope_theta": config.default_theta}
    if set(given) - set(defaults) and given != nothing:
        message = f"rope parameters are not by layer type: {sorted(given)}"
        raise FormatError(message, where="config", hint=f"there are {' and '.join(defaults)}")
    entries = {kind: {**start, **given.get(kind, {})} for kind, start in defaults.items()}
    whole = replace(config, rope_parameters=entries)
    return {kind: rope_table(whole, context, kind) for kind in entries}
