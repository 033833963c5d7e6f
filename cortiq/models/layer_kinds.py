"""Configurations that list their layers: every list checked for its length and its words."""

from __future__ import annotations

from collections.abc import Sequence

from cortiq.errors import FormatError

GLOBAL, LOCAL = "full_attention", "sliding_attention"


def layer_list(
    values: Sequence[str] | None, count: int, kinds: Sequence[str], name: str = "layer_types"
) -> tuple[str, ...]:
    """The kind of every layer, as a config lists them.

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


def windows(values: Sequence[str] | None, count: int, window: int | None) -> tuple[int | None, ...]:
    """The window of every layer of `layer_types`: `None` where a layer sees everything.

    Raises
    ------
    FormatError : as `layer_list`; layers with a window, but none is given.
    """
    kinds = layer_list(values, count, (GLOBAL, LOCAL))
    if window is None and LOCAL in kinds:
        message = f"layer_types has {LOCAL}, but no sliding_window is given or in use"
        raise FormatError(message, where="config")
    return tuple(window if kind == LOCAL else None for kind in kinds)
