"""Wants of rows: the values that they are computed from, and why one has no answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cortiq.backend.batch import Argmax, Digest, Draw, DrawnLogit, LateMask, Top, Want
from cortiq.ir import Graph
from cortiq.numerics.masks import mask_fault

LARGEST_VOCABULARY = 2**31
LEAST_CALIBRATION = 2.0**-20


def value_of(want: Want) -> str:
    """Return the name of the value that a want is computed from."""
    return "logits" if isinstance(want, Top | DrawnLogit) else want.name


def drawable(ids: npt.NDArray[np.int32], graph: Graph) -> npt.NDArray[np.int32]:
    """Return those of some ids that have a logit; tokens of images may have none."""
    type_ = graph.values.get("logits")
    return ids if type_ is None else ids[ids < type_.shape[0]]


def unanswerable(graph: Graph, want: Want) -> str | None:
    """Return why a want has no answer."""
    if not isinstance(want, Want):
        return f"nothing answers the want {want!r}"
    name = value_of(want)
    type_ = graph.values.get(name)
    if type_ is None:
        return f"the graph has no value {name!r}"
    if isinstance(want, Digest) and type_.dtype != "f32":
        return f"{name!r} is {type_}; digests are of f32 values"
    width = type_.shape[-1] if type_.shape else 1
    if isinstance(want, Argmax | Draw) and (type_.dtype != "f32" or len(type_.shape) != 1):
        return f"{name!r} is {type_}; tokens are drawn from a row of f32 logits"
    if isinstance(want, DrawnLogit) and len(type_.shape) != 1:
        return f"{name!r} is {type_}; tokens are drawn from a row of f32 logits"
    if isinstance(want, Top) and not (type(want.count) is int and 1 <= want.count <= width):
        return f"the top {want.count} of {width} logits"
    return _undrawable(want, width) if isinstance(want, Draw) else None


def undrawn(want: Want, wants: Sequence[Want]) -> str | None:
    """Return why there is no logit of a drawn token."""
    if not isinstance(want, DrawnLogit):
        return None
    if not LEAST_CALIBRATION <= want.calibration <= 2.0**100:
        return f"a calibration of {want.calibration!r}"
    draws = any(isinstance(other, Draw | Argmax) for other in wants)
    return None if draws else "the logit of a drawn token, in a row that draws none"


def _undrawable(want: Draw, width: int) -> str | None:
    """Return why nothing can be drawn from this many logits."""
    for what, ids in (("logit_bias", want.sampling.logit_bias), ("history", want.history or ())):
        unknown = [token for token in ids if not 0 <= token < width]
        if unknown:
            return f"{what} names token {unknown[0]} of {width}"
    if not (type(want.ahead) is int and 0 <= want.ahead < LARGEST_VOCABULARY):
        return f"a token {want.ahead!r} positions ahead"
    if isinstance(want.mask, LateMask):
        return "masks that come later are for executables and batches that take them"
    return (mask_fault(want.mask, width) or None) if want.mask is not None else None
