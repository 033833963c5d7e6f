"""Keys of the ids in which a prefix may end: from a list, or from the row where that is short."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, constant, device
from cortiq_triton.order import allowed, bucket_of, depth_of, finer, keys_of, weight_of

LAST = constant(9223372036854775807)
"""A key after all others."""


@device
def candidates(
    y: Tensor, listed: Tensor, masks: Tensor, mask: Tensor, start: Tensor, count: Tensor,
    short: Tensor, largest: Tensor, smallest: Tensor, chosen: Tensor, fine: Tensor, n: Tensor,
    words: Tensor, RAW: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr,
    CHUNK: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Keys of a chunk of the list, or of the row where the list is too short, and which count."""
    i = start + tl.arange(0, CHUNK)
    if short:
        inside = allowed(masks, mask, i, i < n, words, MASKED)
        value = tl.load(y + i, mask=inside, other=0.0)
        depth = depth_of(value, largest, smallest, RAW)
        inside = inside & (bucket_of(depth) == chosen) & (finer(depth, chosen) == fine)
        key = keys_of(value, largest, i, SHIFT, RAW)
    else:
        inside = i < count
        key = tl.load(listed + i, mask=inside, other=0)
    return key, inside


@device
def weights_of_keys(key: Tensor, SHIFT: tl.constexpr) -> Tensor:
    """Weights of ids by their keys, which hold the distance's bits."""
    distance = -((key >> SHIFT).to(tl.int32).to(tl.float32, bitcast=True))
    return weight_of(distance)


@device
def weight_of_list(
    listed: Tensor, many: Tensor, SHIFT: tl.constexpr, CHUNK: tl.constexpr
) -> Tensor:
    """Return the sum of the weights of the ids of a list."""
    whole = many * 0
    for start in range(0, many, CHUNK):
        i = start + tl.arange(0, CHUNK)
        key = tl.load(listed + i, mask=i < many, other=0)
        whole += tl.sum(tl.where(i < many, weights_of_keys(key, SHIFT), 0), 0)
    return whole


@device
def least_and_most(
    y: Tensor, listed: Tensor, masks: Tensor, mask: Tensor, stop: Tensor, count: Tensor,
    short: Tensor, largest: Tensor, smallest: Tensor, chosen: Tensor, fine: Tensor, n: Tensor,
    words: Tensor, RAW: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr,
    CHUNK: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The first and the last of the candidates' keys."""
    low, high = count * 0 + LAST, count * 0 - LAST
    for start in range(0, stop, CHUNK):
        key, inside = candidates(
            y, listed, masks, mask, start, count, short, largest, smallest, chosen, fine, n,
            words, RAW, MASKED, SHIFT, CHUNK,
        )  # fmt: skip
        low = tl.minimum(low, tl.min(tl.where(inside, key, LAST), 0))
        high = tl.maximum(high, tl.max(tl.where(inside, key, -LAST), 0))
    return low, high
