"""Checks of tensors' bytes: sizes, and what encodings say inside that a decoder relies on.

Headers of data-dependent encodings are looked at, not the codes; nothing is copied but them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from cortiq.formats.cmf.dtypes import GROUP, Dtype, code_bytes, fits, fixed_size

Bytes = npt.NDArray[np.uint8]

WIDTHS = (3, 4, 5, 6, 8)
"""Bits of a code of vbit."""
HIGHEST = 127.0
"""A ladder's last exponent is below this, its first at least −126."""
DIGITS = 3**5
"""Base-3 numbers of five digits are below this."""
SLICE = 1 << 20


def problem(dtype: Dtype, shape: tuple[int, ...], raw: Bytes, strict: bool = True) -> str:
    """Return what is wrong with a tensor's bytes; empty if nothing is.

    Parameters
    ----------
    strict : look at the content of every encoding, not of vbit's only, as the original engine does.
    """
    size = fixed_size(dtype, shape) if not fits(dtype, shape) else None
    if size is not None and size != len(raw):
        return f"has {len(raw)} bytes, {dtype.name} {list(shape)} takes {size}"
    check = CHECKS.get(dtype.name)
    if check is None or not (strict or dtype.name in ("vbit", "vbit_ro")):
        return ""
    return check(shape, raw)


def row_sizes(widths: Bytes, columns: int) -> npt.NDArray[np.int64]:
    """Return the bytes of rows of codes of these widths."""
    return -(-columns * widths.astype(np.int64) // 8)


def _vbit(shape: tuple[int, ...], raw: Bytes, offsets: int = 0) -> str:
    rows, columns = shape
    head = rows + 2 * rows * (columns // GROUP) + offsets
    if len(raw) < head:
        return f"has {len(raw)} bytes, too few for the widths and scales of {rows} rows"
    widths = raw[:rows]
    if not np.isin(widths, WIDTHS).all():
        odd = int(widths[~np.isin(widths, WIDTHS)][0])
        return f"has codes of {odd} bits; there are {', '.join(map(str, WIDTHS))}"
    total = head + int(row_sizes(widths, columns).sum())
    return "" if total == len(raw) else f"has {len(raw)} bytes, its rows take {total}"


def _vbit_ro(shape: tuple[int, ...], raw: Bytes) -> str:
    rows, columns = shape
    found = _vbit(shape, raw, 4 * (rows + 1))
    if found:
        return found
    at = rows + 2 * rows * (columns // GROUP)
    offsets = raw[at : at + 4 * (rows + 1)].view("<u4").astype(np.int64)
    sizes = row_sizes(raw[:rows], columns)
    if offsets[0] != 0 or not np.array_equal(np.diff(offsets), sizes):
        return "has row offsets that are not the sums of its rows' bytes"
    return ""


def _ladder(shape: tuple[int, ...], raw: Bytes, plane: int) -> str:
    rows, columns = shape
    at = plane * rows * (columns // GROUP)
    pairs = raw[at : at + 4 * rows].view("<f2").reshape(rows, 2).astype(np.float64)
    low, step = pairs[:, 0], pairs[:, 1]
    with np.errstate(invalid="ignore"):
        good = np.isfinite(pairs).all(axis=1) & (step >= 0) & (low >= -126)
        good &= low + 31 * step < HIGHEST
    if good.all():
        return ""
    row = int(np.argmin(good))
    return f"has the ladder 2^{low[row]:g}, times 2^{step[row]:g}, in row {row}"


def _q1s(shape: tuple[int, ...], raw: Bytes) -> str:
    n = shape[0] * shape[1]
    at = 6 * (n // GROUP)
    if len(raw) < at + 4:
        return f"has {len(raw)} bytes, too few for its groups"
    count = int(raw[at : at + 4].view("<u4")[0])
    if len(raw) != at + 4 + 6 * count:
        return f"has {len(raw)} bytes, its {count} overlaid values take {at + 4 + 6 * count}"
    index = overlay_index(raw[at + 4 :])
    if count and (int(index[-1]) >= n or (index[1:] <= index[:-1]).any()):
        return "has overlaid values whose places do not ascend inside it"
    return ""


def overlay_index(entries: Bytes) -> npt.NDArray[np.uint32]:
    """Return the places of q1s's overlaid values: six bytes each, the place in the first four."""
    return np.ascontiguousarray(entries.reshape(-1, 6)[:, :4]).view("<u4")[:, 0]


def _q1t(shape: tuple[int, ...], raw: Bytes) -> str:
    rows, columns = shape
    groups = rows * (columns // GROUP)
    at = 9 * groups + 4 * (rows + 1)
    if len(raw) < at:
        return f"has {len(raw)} bytes, too few for its groups"
    starts = raw[9 * groups : at].view("<u4").astype(np.int64)
    if starts[0] != 0 or (np.diff(starts) < 0).any() or len(raw) != at + 4 * int(starts[-1]):
        return "has row starts that do not ascend to the end of its overlaid values"
    digits = raw[: 9 * groups].reshape(groups, 9)
    for start in range(0, groups, SLICE):
        if int(digits[start : start + SLICE, 2:].max(initial=0)) >= DIGITS:
            return "has a byte that is no five ternary digits"
    return _overlay(starts, raw[at:], columns)


def _overlay(starts: npt.NDArray[np.int64], entries: Bytes, columns: int) -> str:
    column = entries.reshape(-1, 4)[:, :2].copy().view("<u2")[:, 0].astype(np.int64)
    row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    same = row[1:] == row[:-1]
    if (column >= columns).any() or (same & (column[1:] <= column[:-1])).any():
        return "has overlaid values whose columns do not ascend inside their rows"
    return ""


CHECKS: Mapping[str, Callable[[tuple[int, ...], Bytes], str]] = {
    "vbit": _vbit,
    "vbit_ro": _vbit_ro,
    "q4tp": lambda shape, raw: _ladder(shape, raw, 16),
    "q2tp": lambda shape, raw: _ladder(shape, raw, 8),
    "q1s": _q1s,
    "q1t": _q1t,
}
"""Checks of encodings that say more than a size, by name."""


def parts_of_ladder(
    shape: tuple[int, ...], raw: Bytes, plane: int
) -> tuple[Bytes, npt.NDArray[np.uint16], Bytes]:
    """Return a ladder encoding's codes [rows, groups, plane], parameters [rows, 2] and rungs' bytes
    [rows, ⌈5·groups/8⌉].
    """
    rows, groups = shape[0], shape[1] // GROUP
    first = plane * rows * groups
    second = first + 4 * rows
    codes = raw[:first].reshape(rows, groups, plane)
    parameters = raw[first:second].view("<u2").reshape(rows, 2)
    return codes, parameters, raw[second:].reshape(rows, code_bytes(shape[1]))
