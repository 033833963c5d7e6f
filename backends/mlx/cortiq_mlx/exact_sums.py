"""Integer sums on a library that multiplies and adds floats: the only two places that may.

MLX has no integer matmul, and the order of its float sums is its own. A float32 sum is exact in
any order as long as every partial sum is an integer of magnitude 2²⁴ at most; `exact_matmul` lets
nothing else into a matmul, and `exact_sum` adds integers only. A test forbids both elsewhere.
"""

from __future__ import annotations

from typing import Any

from cortiq_mlx.library import mx

EXACT = 1 << 24
"""Integers up to this magnitude are float32 numbers, all of them."""
WORD = 1 << 31
PLANE = 1 << 7
"""Magnitude of int8 planes and codes."""

checks: list[Any] = []
"""With `watching()`: lazy flags that say whether an operand kept its bound."""
_watched = False
_wide = True


def watching(on: bool) -> None:
    """Collect a flag in `checks` for every operand, whether it holds what it was said to hold."""
    global _watched
    _watched = on
    checks.clear()


def exact_matmul(a: mx.array, b: mx.array, a_limit: int, b_limit: int) -> mx.array:
    """Multiply matrices of integers: float32 that holds the exact integer sums.

    Parameters
    ----------
    a, b : integer arrays [..., M, K] and [..., K, N] (int8, int16 or int32).
    a_limit, b_limit : largest magnitudes they may hold; K·a_limit·b_limit ≤ 2²⁴.
    """
    for x, limit in ((a, a_limit), (b, b_limit)):
        _check_integers(x, limit)
    terms = a.shape[-1]
    if terms * a_limit * b_limit > EXACT:
        raise AssertionError(f"{terms} products of {a_limit} and {b_limit} exceed 2^24")
    return a.astype(mx.float32) @ b.astype(mx.float32)


def exact_sum(x: mx.array, axis: int, limit: int, keepdims: bool = False) -> mx.array:
    """Add up integers over an axis: int32, which n·limit must fit, or int64."""
    _check_integers(x, limit)
    room = WORD if x.dtype == mx.int32 else 1 << 63
    if x.dtype not in (mx.int32, mx.int64) or x.shape[axis] * limit >= room:
        raise AssertionError(f"{x.shape[axis]} terms of {limit} do not fit {x.dtype}")
    return x.sum(axis=axis, keepdims=keepdims)


def wrapping_sum(words: mx.array) -> mx.array:
    """Add up uint32 words modulo 2³²."""
    if words.dtype != mx.uint32:
        raise AssertionError(f"words of {words.dtype}")
    return words.sum()


def running_sum(x: mx.array, total: int) -> mx.array:
    """Return the sums of the first 1, 2, … of int64 numbers from 0 on, `total` at most."""
    if x.dtype != mx.int64 or total >= 1 << 63:
        raise AssertionError(f"running sums of {x.dtype} up to {total}")
    return mx.cumsum(x)


def count(flags: mx.array, axis: int) -> mx.array:
    """Count the flags that are set: int32."""
    return exact_sum(flags.astype(mx.int32), axis, 1)


def _check_integers(x: mx.array, limit: int) -> None:
    if not mx.issubdtype(x.dtype, mx.integer):
        raise AssertionError(f"an exact product or sum of {x.dtype}")
    if _watched and x.size:
        wide = x.astype(mx.int64)
        checks.append(mx.maximum(wide.max(), -wide.min()) <= limit)


def round_wide(i: mx.array) -> mx.array:
    """Round int32 to float32."""
    return i.astype(mx.float32) if _wide else portable_int32(i)


def portable_int32(i: mx.array) -> mx.array:
    """Round int32 to float32 by parts that are exact."""
    return (i >> 12).astype(mx.float32) * 4096.0 + (i & 4095).astype(mx.float32)


def trust_wide(trusted: bool) -> None:
    """Set whether int32 and int64 become float32 with one rounding here; else parts are rounded."""
    global _wide
    _wide = trusted


def round_two_planes(high: mx.array, low: mx.array) -> mx.array:
    """Return RN(high·256 + low) of plane sums."""
    if _wide:
        return (high.astype(mx.int64) * 256 + low.astype(mx.int64)).astype(mx.float32)
    return portable_two_planes(high.astype(mx.int32), low.astype(mx.int32))


def round_three_planes(high: mx.array, middle: mx.array, low: mx.array) -> mx.array:
    """Return RN(high·65536 + middle·256 + low) of plane sums."""
    if _wide:
        upper = high.astype(mx.int64) * 256 + middle.astype(mx.int64)
        return (upper * 256 + low.astype(mx.int64)).astype(mx.float32)
    return portable_three_planes(*(x.astype(mx.int32) for x in (high, middle, low)))


def portable_two_planes(high: mx.array, low: mx.array) -> mx.array:
    """Return RN(high·256 + low) from int32 only.

    Source: the contract, section 11.
    """
    carry = (low + 128) >> 8
    high, low = high + carry, low - (carry << 8)
    top = (high + 16384) >> 15
    rest = ((high - (top << 15)) << 8) + low
    return top.astype(mx.float32) * 8388608.0 + rest.astype(mx.float32)


def portable_three_planes(high: mx.array, middle: mx.array, low: mx.array) -> mx.array:
    """Return RN(high·65536 + middle·256 + low) from int32 only."""
    carry = (low + 128) >> 8
    low, middle = low - (carry << 8), middle + carry
    carry = (middle + 128) >> 8
    middle, high = middle - (carry << 8), high + carry
    top = (high + 64) >> 7
    rest = ((high - (top << 7)) << 16) + (middle << 8) + low
    return top.astype(mx.float32) * 8388608.0 + rest.astype(mx.float32)


def planes(q: mx.array) -> tuple[mx.array, mx.array]:
    """Split 16-bit integers into int8 planes (high, low): q = 256·high + low."""
    wide = q.astype(mx.int32)
    high = (wide + 128) >> 8
    return high.astype(mx.int8), (wide - (high << 8)).astype(mx.int8)


def dot_of_planes(a: mx.array, b: mx.array) -> mx.array:
    """Return RN of the integer products of rows in two planes: float32 [..., M, N].

    Parameters
    ----------
    a : int8 [..., 2·M, K], the high planes of M rows, then the low ones.
    b : int8 [..., K, 2·N] alike.
    """
    half, width = a.shape[-2] // 2, b.shape[-1] // 2
    sums = exact_matmul(a, b, PLANE, PLANE).astype(mx.int64 if _wide else mx.int32)
    high, low = sums[..., :half, :], sums[..., half:, :]
    middle = high[..., width:] + low[..., :width]
    return round_three_planes(high[..., :width], middle, low[..., width:])
