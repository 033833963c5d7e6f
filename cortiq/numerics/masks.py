"""Sampling masks: the ids that a row may draw, one bit each.

Bit t of a mask is bit t mod 8 of byte t // 8, as in an array of little-endian 32-bit words, which
is how grammar libraries keep them: `mask.tobytes()` of theirs is a mask of ours.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError, shown

Mask = bytes

LOOKED_AT = 256
"""Bytes of a mask that are looked at before all, since most masks allow one of these ids: masks are
checked at each step of each row."""


def mask_of(ids: Iterable[int], vocabulary: int) -> Mask:
    """Make a mask that allows these ids.

    Raises
    ------
    RequestError : an id is not in the vocabulary.
    """
    allowed = np.zeros(vocabulary, bool)
    for token in ids:
        if not 0 <= token < vocabulary:
            what = f"a mask names token {shown(token)} of a vocabulary of {vocabulary}"
            raise RequestError(what, where="sampling")
        allowed[token] = True
    return np.packbits(allowed, bitorder="little").tobytes()


def allowed_ids(mask: Mask | None, vocabulary: int) -> npt.NDArray[np.int64]:
    """Return the ids that a mask allows, ascending; all without a mask. Bits past the end are
    ignored.

    Raises
    ------
    RequestError : the mask has too few bytes, or allows nothing.
    """
    if mask is None:
        return np.arange(vocabulary)
    fault = mask_fault(mask, vocabulary)
    if fault:
        raise RequestError(fault, where="sampling")
    return np.flatnonzero(_bits(mask, vocabulary))


def mask_fault(mask: object, vocabulary: int) -> str:
    """Return the fault of a mask, or an empty string."""
    if not isinstance(mask, bytes):
        return f"a mask is bytes, not {type(mask).__name__}"
    size = -(-vocabulary // 8)
    if len(mask) < size:
        return f"a mask of {len(mask)} bytes, {vocabulary} tokens take {size}"
    first = size > LOOKED_AT and mask[:LOOKED_AT].strip(b"\0")
    whole = first or np.frombuffer(mask, np.uint8, vocabulary // 8).any()
    if not (whole or _last_bits(mask, vocabulary)):
        return f"a mask that allows none of the {vocabulary} tokens"
    return ""


def _last_bits(mask: Mask, vocabulary: int) -> int:
    """Return the bits of the ids after the last whole byte."""
    rest = vocabulary % 8
    return mask[vocabulary // 8] & ((1 << rest) - 1) if rest else 0


def _bits(mask: Mask, vocabulary: int) -> npt.NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(mask, np.uint8), count=vocabulary, bitorder="little")
