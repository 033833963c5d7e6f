"""Encoders of q1, q1s and q1t: signs or ternary digits under a scale, values laid over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from cortiq.formats.cmf.dtypes import GROUP
from cortiq.formats.cmf.payloads import Bytes
from cortiq.formats.cmf.scalars import F32, TINY, Floats, floored, half_bits, left_sum, rounded_half

Q1S_KEPT = F32(0.01)
"""Part of a tensor's values that q1s keeps as f16."""


def threshold_of(
    slices: Callable[[], Iterable[Floats]], count: int, kept: np.float32
) -> tuple[np.float32, int]:
    """Return the size from which values are laid over, and how many have it: at least the part
    `kept` of all, and those that equal its smallest.
    """
    wanted = min(int(np.floor(F32(count) * kept + F32(0.5))), count)
    if wanted == 0:
        return F32(np.inf), 0
    sizes = np.concatenate([np.abs(values).reshape(-1) for values in slices()])
    threshold = np.partition(sizes, count - wanted)[count - wanted]
    return threshold, int((sizes >= threshold).sum())


def _mean_size(groups: Floats, counted: npt.NDArray[np.bool_] | None = None) -> Floats:
    """Return the mean magnitude of groups [n, 32], of those values that count."""
    sizes = np.abs(groups)
    if counted is None:
        return left_sum(sizes).astype(F32) / F32(GROUP)
    number = counted.sum(axis=1).astype(F32)
    total = left_sum(np.where(counted, sizes, F32(0))).astype(F32)
    return np.where(number > 0, total / np.maximum(number, F32(1)), F32(0))


def sign_rows(
    values: Floats, carried: bool, threshold: np.float32 | None = None, start: int = 0
) -> list[Bytes]:
    """Return rows of q1, and with a threshold the entries of q1s.

    Parameters
    ----------
    carried : add what a sign loses to the value behind it, along the row.
    threshold : values of this size or more are laid over; they lose and carry nothing.
    start : number of the first row.
    """
    rows, columns = values.shape
    out = None if threshold is None else np.abs(values) >= threshold
    counted = None if out is None else ~out.reshape(-1, GROUP)
    scale = floored(_mean_size(values.reshape(-1, GROUP), counted)).reshape(rows, -1)
    bits = _carried_signs(values, scale, out) if carried else values >= 0
    packed = np.packbits(bits.reshape(-1, GROUP), axis=1, bitorder="little")
    halves = half_bits(scale).reshape(-1, 1).view(np.uint8)
    tiles = np.concatenate([halves, packed], axis=1).reshape(-1)
    if out is None:
        return [tiles]
    index = np.flatnonzero(out)
    entries = np.empty((len(index), 6), np.uint8)
    entries[:, :4] = (index + start * columns).astype("<u4")[:, None].view(np.uint8)
    entries[:, 4:] = half_bits(values.reshape(-1)[index])[:, None].view(np.uint8)
    return [tiles, entries.reshape(-1)]


def _carried_signs(
    values: Floats, scale: Floats, out: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_]:
    bits = np.empty(values.shape, np.bool_)
    carry = np.zeros(len(values), F32)
    for column in range(values.shape[1]):
        found = values[:, column] + carry
        plus, size = found >= 0, scale[:, column // GROUP]
        left = found - np.where(plus, size, -size)
        if out is None:
            bits[:, column], carry = plus, left
        else:
            over = out[:, column]
            bits[:, column] = np.where(over, values[:, column] >= 0, plus)
            carry = np.where(over, carry, left)
    return bits


def ternary_rows(values: Floats) -> list[Bytes]:
    """Return rows of q1t without calibration: nothing is laid over, all columns weigh the same.

    Of two scales of a group the one of less error counts: the mean size, with digits from its half
    on; or the mean of sizes from 0.7 of the mean on, with digits for those. A factor for each row
    then makes its digits fit best.
    """
    groups = values.reshape(-1, GROUP)
    mean = _mean_size(groups)
    plain = np.maximum(rounded_half(mean), TINY)
    sizes, reach = np.abs(groups), (F32(0.7) * mean)[:, None]
    loud = sizes >= reach
    total = left_sum(np.where(loud, sizes, F32(0)).astype(np.float64))
    count = np.maximum(loud.sum(axis=1), 1)
    sparse = np.maximum(rounded_half((total / count).astype(F32)), TINY)
    sparse = np.where(loud.any(axis=1), sparse, plain)
    by_half = sizes >= F32(0.5) * plain[:, None]
    errors = [
        _ternary_error(groups, digits, scale)
        for digits, scale in ((by_half, plain), (loud, sparse))
    ]
    better = errors[1] < errors[0]
    scale = np.where(better, sparse, plain).reshape(len(values), -1)
    digits = np.where(better[:, None], loud, by_half).reshape(values.shape)
    signs = np.where(digits, np.where(np.signbit(values), F32(-1), F32(1)), F32(0))
    bits = half_bits(_fitted(values, signs, scale)).reshape(-1, 1).view(np.uint8)
    codes = np.where(signs > 0, 1, np.where(signs < 0, 2, 0)).astype(np.uint8).reshape(-1, GROUP)
    padded = np.concatenate([codes, np.zeros((len(codes), 3), np.uint8)], axis=1)
    weights = np.array([1, 3, 9, 27, 81], np.uint8)
    packed = (padded.reshape(-1, 7, 5) * weights).sum(axis=2).astype(np.uint8)
    return [np.concatenate([bits, packed], axis=1).reshape(-1)]


def _ternary_error(
    groups: Floats, digits: npt.NDArray[np.bool_], scale: Floats
) -> npt.NDArray[np.floating]:
    """Return the float64 sum of squared errors of groups."""
    value = np.where(digits, np.copysign(scale[:, None], groups), F32(0))
    error = groups.astype(np.float64) - value
    return left_sum(error * error)


def _fitted(values: Floats, signs: Floats, scale: Floats) -> Floats:
    """Return scales times the factor of least squares of their row, from ½ to 2."""
    value = (signs * np.repeat(scale, GROUP, axis=1)).astype(np.float64)
    above, below = left_sum(value * values), left_sum(value * value)
    usable = below > 1e-20
    factor = np.clip(above / np.where(usable, below, 1.0), 0.5, 2.0).astype(F32)
    return np.where(usable[:, None], scale * factor[:, None], scale)
