"""Checks of the answers to each kind of want: their types and shapes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cortiq.backend.batch import Argmax, Digest, Draw, DrawnLogit, Named, Top, Want
from cortiq.backend.held_rows import HeldRows
from cortiq.backend.wants import value_of
from cortiq.errors import shown
from cortiq.ir import Type
from cortiq.numerics.quantise import Quantised

DTYPES = {"f32": np.dtype(np.float32), "i32": np.dtype(np.int32)}
DIGEST_WORDS = 4
TOP_PARTS = 3
LOGIT_PARTS = 2
_NOTHING = object()


def unlike(
    wants: Sequence[Want], brought: Any, values: Mapping[str, Type], held: bool = False
) -> tuple[str, str] | None:
    """Return what a row brought that answers no want, and what would; None where all is well.

    Parameters
    ----------
    values : types of the graph's values, by name. held : whether the backend may hold values.
    """
    if not isinstance(brought, Mapping):
        return shown(brought), "a mapping of wants to values"
    for want in wants:
        value = brought.get(want, _NOTHING)
        if value is _NOTHING:
            return f"nothing for {shown(want)}", "every want of a row"
        kind = type(want)
        if kind is Digest and type(value) is tuple and len(value) == DIGEST_WORDS:
            continue
        if held and isinstance(value, HeldRows) and kind is Named:
            value = np.broadcast_to(np.zeros((), value.dtype), value.shape)
        wanted = _wanted(want, value, values[value_of(want)])
        if wanted is not None:
            return f"{described(value)} for {shown(want)}", wanted
    return None


def described(value: Any) -> str:
    """Return type and shape of an array, or any other value as it is shown."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return shown(value)
    return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)}"


def _wanted(want: Want, value: Any, kind: Type) -> str | None:
    """Return the description of what would answer a want, unless this does."""
    if isinstance(want, Named):
        return _named(value, kind)
    if isinstance(want, Argmax | Draw):
        width = kind.shape[-1] if kind.shape else 1
        return None if _is_id(value, width) else f"an id below {width}"
    if isinstance(want, Digest):
        return None if _of_length(value, DIGEST_WORDS) else "four 32-bit words"
    if isinstance(want, DrawnLogit):
        return None if _of_length(value, LOGIT_PARTS) else "a logit and logsumexp"
    assert isinstance(want, Top)
    return None if _of_length(value, TOP_PARTS) else "ids, values and logsumexp"


def _named(value: Any, kind: Type) -> str | None:
    if kind.dtype == "q16":
        return None if isinstance(value, Quantised) else f"a Quantised of shape {list(kind.shape)}"
    dtype = DTYPES[kind.dtype]
    fits = isinstance(value, np.ndarray | np.generic) and value.dtype == dtype
    return None if fits and value.shape == kind.shape else f"{dtype}{list(kind.shape)}"


def _is_id(value: Any, width: int) -> bool:
    if type(value) is int:
        return 0 <= value < width
    try:
        return not isinstance(value, bool) and 0 <= operator.index(value) < width
    except TypeError:
        return False


def _of_length(value: Any, length: int) -> bool:
    return isinstance(value, Sequence | np.ndarray) and len(value) == length
