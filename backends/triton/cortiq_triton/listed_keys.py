"""Keys of the ids in which a prefix may end: from a list, or from the row where that is short."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton import draw_numbers as columns
from cortiq_triton.language import Tensor, constant, device
from cortiq_triton.order import allowed, bucket_of, depth_of, finer, keys_of, number, weight_of

TOP_K, TOP_P = constant(columns.TOP_K), constant(columns.TOP_P)

LAST, SMALL = constant(9223372036854775807), constant(128)
"""A key after all others; keys of a list for which a program of fewer lanes is there."""


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


@device
def keeps_few(lines: Tensor, row: Tensor, FEW: tl.constexpr) -> Tensor:
    """Whether a row's top_k keeps at most FEW ids.

    Such a row needs no weights by bucket: its top_p is found among all that is kept, in a list.
    """
    wanted = number(lines, row, TOP_K)
    return (wanted > 0) & (wanted <= FEW)


@device
def weight_to_reach(whole: Tensor, lines: Tensor, row: Tensor) -> Tensor:
    """share(whole, top_p), at least 1; 0 where top_p cuts nothing."""
    share = number(lines, row, TOP_P).to(tl.int64)
    target = (whole >> 24) * share + (((whole & 16777215) * share + 16777215) >> 24)
    return tl.where(share < 0, 0, tl.maximum(target, 1))


@device
def weight_upto(
    last: Tensor, y: Tensor, listed: Tensor, masks: Tensor, mask: Tensor, stop: Tensor,
    count: Tensor, short: Tensor, largest: Tensor, smallest: Tensor, chosen: Tensor, fine: Tensor,
    n: Tensor, words: Tensor, RAW: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr,
    CHUNK: tl.constexpr,
) -> Tensor:  # fmt: skip
    """The sum of the weights of the candidates up to a key."""
    weight = count * 0
    for start in range(0, stop, CHUNK):
        key, inside = candidates(
            y, listed, masks, mask, start, count, short, largest, smallest, chosen, fine, n,
            words, RAW, MASKED, SHIFT, CHUNK,
        )  # fmt: skip
        inside = inside & (key <= last)
        weight += tl.sum(tl.where(inside, weights_of_keys(key, SHIFT), 0), 0)
    return weight


@device
def last_of_list(
    row_list: Tensor, many: Tensor, target: Tensor, lines: Tensor, row: Tensor,
    WEIGHTS: tl.constexpr, SHIFT: tl.constexpr, CHUNK: tl.constexpr,
) -> Tensor:  # fmt: skip
    """The last key that is kept of a list that holds the first `target` of a row: these, and with
    WEIGHTS of these the ones that a row's top_p keeps.
    """
    if many <= SMALL:
        last = place_all(row_list, many, target, lines, row, WEIGHTS, SHIFT, SMALL)
    else:
        last = place_all(row_list, many, target, lines, row, WEIGHTS, SHIFT, CHUNK)
    return last


@device
def place_all(
    row_list: Tensor, many: Tensor, target: Tensor, lines: Tensor, row: Tensor,
    WEIGHTS: tl.constexpr, SHIFT: tl.constexpr, SIZE: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Return what `last_of_list` does, of at most SIZE keys.

    Each is compared with all others, whose counts and weights up to it are its place.
    """
    i = tl.arange(0, SIZE)
    key = tl.load(row_list + i, mask=i < many, other=LAST)
    place, reached = key * 0, key * 0
    for start in range(0, many, 16):
        j = start + tl.arange(0, 16)
        other = tl.load(row_list + j, mask=j < many, other=LAST)
        upto = other[None, :] <= key[:, None]
        place += tl.sum(upto.to(tl.int64), 1)
        if WEIGHTS:
            weight = tl.where(j < many, weights_of_keys(other, SHIFT), 0)
            reached += tl.sum(tl.where(upto, weight[None, :], 0), 1)
    last = tl.max(tl.where((i < many) & (place == target), key, -LAST), 0)
    if WEIGHTS:
        kept = (i < many) & (place <= target)
        goal = weight_to_reach(tl.max(tl.where(kept, reached, 0), 0), lines, row)
        least = tl.min(tl.where(kept & (reached >= goal), key, LAST), 0)
        last = tl.where(goal > 0, least, last)
    return last
