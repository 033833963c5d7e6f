"""The order in which ids of a row are kept: their keys, weights and buckets, as kernels see them.

Ids are ordered by the key (order of the value, id), all of them different, smallest first.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton import draw_numbers as columns
from cortiq_triton.language import Tensor, constant, device
from cortiq_triton.rows import ordered_bits
from cortiq_triton.scalar import exp, magnitude_bits, snapped

LOWEST, HIGHEST = constant(-2147483648), constant(2147483647)
FARTHEST = constant(28.0)
"""Ids whose value lies further below the largest weigh nothing."""
PLACE, AT, MASK, OVER_T = map(
    constant, (columns.PLACE, columns.AT, columns.MASK, columns.OVER_T)
)  # fmt: skip
WIDTH = constant(columns.COLUMNS)


@device
def number(lines: Tensor, row: Tensor, column: tl.constexpr) -> Tensor:
    """A number of a draw."""
    return tl.load(lines + row * WIDTH + column)


@device
def real(lines: Tensor, row: Tensor, column: tl.constexpr) -> Tensor:
    """A number of a draw that is a float32."""
    return number(lines, row, column).to(tl.float32, bitcast=True)


@device
def allowed(
    masks: Tensor, mask: Tensor, i: Tensor, inside: Tensor, words: Tensor, MASKED: tl.constexpr
) -> Tensor:
    """Tell the ids that a draw may take: those of its bit mask, or all."""
    if MASKED:
        at = masks + mask * words + (i >> 5)
        word = tl.load(at, mask=inside & (mask + i * 0 >= 0), other=-1)
        inside = inside & (((word >> (i & 31)) & 1) != 0)
    return inside


@device
def extremes(spread: Tensor, row: Tensor, parts: Tensor, PP: tl.constexpr) -> tuple[Tensor, Tensor]:
    """The largest and the smallest value of a row, of what its parts found."""
    i = tl.arange(0, PP)
    at = spread + row * 2 * parts + i
    high = tl.max(tl.load(at, mask=i < parts, other=LOWEST), 0)
    low = tl.min(tl.load(at + parts, mask=i < parts, other=HIGHEST), 0)
    largest = (high ^ ((high >> 31) & HIGHEST)).to(tl.float32, bitcast=True)
    smallest = (low ^ ((low >> 31) & HIGHEST)).to(tl.float32, bitcast=True)
    return largest, smallest


@device
def weight_of(distance: Tensor) -> Tensor:
    """⌊exp(d)·2⁴⁰⌋."""
    return (exp(distance) * 1099511627776.0).to(tl.int64)


@device
def distance_of(y: Tensor, largest: Tensor) -> Tensor:
    """snap(y − largest)."""
    return snapped(y - largest)


@device
def keys_of(
    y: Tensor, largest: Tensor, i: Tensor, SHIFT: tl.constexpr, RAW: tl.constexpr
) -> Tensor:
    """Keys of ids: by distance to the largest, or RAW by the value itself."""
    order = ~ordered_bits(y) if RAW else magnitude_bits(distance_of(y, largest))
    return (order.to(tl.int64) << SHIFT) + i.to(tl.int64)


@device
def depth_of(y: Tensor, largest: Tensor, smallest: Tensor, RAW: tl.constexpr) -> Tensor:
    """Return a value's distance below the largest, in buckets: never less for a later key."""
    span = tl.minimum(largest - smallest, FARTHEST)
    scale = tl.div_rn(tl.where(span > 0.0, 16.0, 0.0), tl.where(span > 0.0, span, 1.0))
    below = largest - y if RAW else -distance_of(y, largest)
    return tl.maximum(tl.minimum(below * scale, 16.0), 0.0)


@device
def bucket_of(depth: Tensor) -> Tensor:
    """The bucket of a depth of 0 to 16."""
    return tl.minimum(depth.to(tl.int32), 15)


@device
def finer(depth: Tensor, bucket: Tensor) -> Tensor:
    """The bucket among the sixteen of `bucket`."""
    return tl.minimum(((depth - bucket.to(tl.float32)) * 16.0).to(tl.int32), 15)
