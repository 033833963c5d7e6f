"""The check of weights: no value or scale of a file is infinite, NaN, or 2⁵⁰ or more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from cortiq.numerics.groupquants import E4M3_NAN
from cortiq.numerics.layouts import WORDS, Weight, floats, unpack

CHECK_BYTES = 1 << 24
"""Bytes of a weight that are looked at in one step."""

Words = npt.NDArray[np.integer]


def check_finite(weight: Weight, name: str) -> None:
    """Read a whole weight once, in bounded slices and without a copy; of codes the scales only.

    Raises
    ------
    FormatError : a value or scale is not finite, or 2⁵⁰ or more: what `floats` or `unpack` says
        of the first slice that holds one, with the tensor and the row.
    """
    kind, limit = WORDS[weight.layout.words]
    explain: Callable[[Weight, str], object]
    explain = floats if weight.layout.kind == "float" else unpack
    rows, nbytes = weight.shape[0], weight.nbytes
    step = max(1, CHECK_BYTES * rows // max(nbytes, 1))
    for start in range(0, rows, step):
        part = weight.rows(start, min(start + step, rows))
        if any(_reaches(words, limit) for words in _words(part, kind)) or _is_odd(part):
            explain(part, name)
            raise AssertionError(f"{name}: the contract accepts what the check refused")


def _is_odd(weight: Weight) -> bool:
    """Return whether a code of E4M3 is its NaN, or a scale that lies in pieces is not finite."""
    layout = weight.layout
    if layout.unpack is not None and not layout.scales_at:
        blocks = weight.parts["raw"].reshape(weight.shape[0], -1, layout.block_bytes)
        return not np.isfinite(layout.unpack(blocks).scale).all()
    if weight.layout.name != "e4m3b32":
        return False
    blocks = weight.parts["raw"].reshape(weight.shape[0], -1, weight.layout.block_bytes)
    return bool(((blocks[..., 4:] & E4M3_NAN) == E4M3_NAN).any())


def _words(weight: Weight, kind: str) -> Iterator[Words]:
    """Yield views of the numbers that a weight holds as they are in the file."""
    layout = weight.layout
    if layout.kind == "parts":
        yield np.asarray(weight.parts["scale"], np.float32).view(kind)
    elif layout.kind == "float":
        yield weight.parts["raw"].view(kind)
    else:
        blocks = weight.parts["raw"].reshape(weight.shape[0], -1, layout.block_bytes)
        width = np.dtype(kind).itemsize
        for at in layout.scales_at:
            yield blocks[..., at : at + width].view(kind)


def _reaches(words: Words, limit: int) -> bool:
    """Return whether the bits of a number, its sign aside, are `limit` or more.

    Bits of positive numbers are ordered as signed integers, those of negative ones as unsigned.
    """
    if words.size == 0:
        return False
    if int(words.max()) >= limit:
        return True
    if words.dtype.kind == "u":
        return False
    unsigned = words.view(f"u{words.dtype.itemsize}")
    return int(unsigned.max()) >= limit + (1 << (8 * words.dtype.itemsize - 1))
