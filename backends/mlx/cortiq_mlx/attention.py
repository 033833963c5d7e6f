"""Attention over one sequence's rows: integers within a tile, powers of two between tiles.

Everything is written for all heads, queries and tiles at once. Tiles of all runs are added up side
by side, 16 steps in all, then runs follow in order. See `cortiq.numerics.attention` for what each
step is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cortiq.numerics import attention as contract
from cortiq.numerics.contract import RUN_TILES, TILE
from cortiq.numerics.scalar import EXP2_POLYNOMIAL
from cortiq_mlx import bodies, custom
from cortiq_mlx.arithmetic import Rows, descending, exp2_int, fixed, horner, inverse, tanh
from cortiq_mlx.exact import EXACT, PLANE, dot_of_planes, exact_sum, planes, round_wide
from cortiq_mlx.library import mx
from cortiq_mlx.routing import first

NONE = -(1 << 20)
"""Exponent of an empty sum: far below every real one."""
LOG2_E = float(contract.LOG2_E_F32)
LIMIT = float(contract.SCORE_LIMIT)
LOWEST = -(2.0**126)
"""Below the score of every key."""
WIDEST_KEY = EXACT // PLANE**2
"""Values of a head's key whose plane products one exact matmul adds up."""
MASS = 1 << (contract.TOTAL_BITS + 1)
"""Above every integer of a tile's total."""


class Planes(NamedTuple):
    """Rows of a cache: int8 planes [n, heads, 2, dim], int8 exponents [n, heads]."""

    q: mx.array
    e: mx.array


@dataclass(frozen=True)
class Geometry:
    """What a layer fixes: constants of the scores, window, sinks [heads] or None, block size."""

    constants: contract.ScoreConstants
    window: int | None
    sinks: mx.array | None
    block: int = 0


@dataclass(frozen=True)
class Sums:
    """Numerator `output`·2^`top` and denominator `total`·2^`peak`, the tiles along the first axis.

    total, peak, top : [..., groups, queries]. output : [..., groups, queries, dim].
    """

    total: mx.array
    peak: mx.array
    output: mx.array
    top: mx.array


def power(n: mx.array, lowest: int = contract.FORGET) -> mx.array:
    """2ⁿ, or 0 below `lowest`."""
    bound = fixed(lowest, n)
    factor = exp2_int(mx.maximum(n, bound))
    return mx.where(n < bound, fixed(0.0, factor), factor)


def merged(values: mx.array, exponents: mx.array) -> tuple[mx.array, mx.array]:
    """The values of the first axis added up in order, each at the largest exponent so far.

    An empty part (0 at `NONE`) changes nothing. What a sum is multiplied by before each step is
    known beforehand, since the exponents are integers: two operations a step remain.
    """
    if len(values) == 1:
        return values[0], exponents[0]
    top = mx.cummax(exponents, axis=0)
    kept, gained = power(top[:-1] - top[1:]), power(exponents - top)
    if values.ndim > exponents.ndim:
        kept, gained = kept[..., None], gained[..., None]
    total, *parts = mx.split(values * gained, len(values), axis=0)
    for part, factor in zip(parts, mx.split(kept, len(parts), axis=0), strict=True):
        total = total * factor + part
    return total[0], top[-1]


def attend(
    q: Rows,
    keys: Planes,
    values: Planes,
    positions: Sequence[int],
    how: Geometry,
    shared: dict,
    chosen: mx.array | None = None,
    base: int = 0,
) -> mx.array:
    """One sequence: q [rows, heads, dim] over a cache's rows; float32 [rows, heads, dim].

    positions : the last key that each row sees.
    shared : what layers of a batch have in common, by whatever it depends on.
    chosen : the blocks that each set of heads sees, int32 [rows, sets, n]; None for all.
    base : position of the first key and value, where a tile begins; no window reaches behind it.
    """
    rows, heads, _ = q.q.shape
    groups = keys.q.shape[1]
    each = heads // groups
    first_key = 0 if how.window is None else max(0, min(positions) - how.window + 1)
    tiles = range(first_key // TILE, max(positions) // TILE + 1)
    key = (*positions, tiles, how.window, each)
    if key not in shared:
        shared[key] = _visible(positions, tiles, how.window, each)
    visible = shared[key]
    if chosen is not None:
        where = mx.arange(tiles.start * TILE, tiles.stop * TILE).reshape(-1, TILE)
        visible = visible & _admitted(chosen, heads, groups, where, how.block)
    there = range(tiles.start - base // TILE, tiles.stop - base // TILE)
    parts = _tiles_of(_by_group(q, groups), keys, values, there, visible, how)
    sums = _whole(parts, tiles)
    y = _normalised(sums, how, rows, each)
    return y.reshape(groups, rows, each, -1).swapaxes(0, 1).reshape(rows, heads, -1)


def _visible(positions: Sequence[int], tiles: range, window: int | None, each: int) -> mx.array:
    """Keys that a query of each row sees: bool [tiles, 1, rows·each, 64]."""
    at = np.repeat(np.array(positions, np.int32), each)[:, None]
    keys = np.arange(tiles.start * TILE, tiles.stop * TILE, dtype=np.int32)
    where = keys.reshape(-1, 1, 1, TILE)
    visible = where <= at
    if window is not None:
        visible = visible & (where > at - window)
    return mx.array(visible)


def _by_group(q: Rows, groups: int) -> Rows:
    """[rows, heads, dim] as int8 planes [groups, 2·rows·each, dim], exponents [groups, rows·each].

    The high planes of all queries come first.
    """
    rows, _, dim = q.q.shape
    sides = [
        plane.reshape(rows, groups, -1, dim).swapaxes(0, 1).reshape(groups, -1, dim)
        for plane in planes(q.q)
    ]
    e = q.e.reshape(rows, groups, -1).swapaxes(0, 1).reshape(groups, -1)
    return Rows(mx.concatenate(sides, axis=1), e)


def _admitted(chosen: mx.array, heads: int, groups: int, where: mx.array, block: int) -> mx.array:
    """Keys of the blocks that each [group, query] sees: bool [tiles, groups, queries, 64]."""
    rows, sets, _ = chosen.shape
    blocks = where.reshape(-1) // block
    table = (chosen[..., None] == blocks).any(axis=2)
    of_heads = mx.repeat(table, heads // sets, axis=1).reshape(rows, groups, heads // groups, -1)
    turned = of_heads.swapaxes(0, 1).reshape(groups, -1, len(where), TILE)
    return turned.transpose(2, 0, 1, 3)


def _cut(rows: Planes, tiles: range) -> Planes:
    """The rows of some tiles as [tiles, 64, heads, …], zero past the last row."""
    q, e = (x[tiles.start * TILE : tiles.stop * TILE] for x in rows)
    missing = len(tiles) * TILE - len(q)
    if missing:
        q = mx.pad(q, [(0, missing), (0, 0), (0, 0), (0, 0)])
        e = mx.pad(e, [(0, missing), (0, 0)])
    split = (len(tiles), TILE)
    return Planes(q.reshape(*split, *q.shape[1:]), e.reshape(*split, -1).astype(mx.int32))


def _tiles_of(
    q: Rows, keys: Planes, values: Planes, tiles: range, visible: mx.array, how: Geometry
) -> Sums:
    """What each tile contributes, by integers only; a tile without visible keys is empty."""
    k, v = _cut(keys, tiles), _cut(values, tiles)
    if custom.active(bodies.TILE) and not how.constants.cap and visible.shape[1] == 1:
        return Sums(*custom.tiles(q, k, v, visible, float(how.constants.factor)))
    scores = _scores(q, k, how.constants)
    whole = mx.round(scores)
    gain, exponents = horner(scores - whole, EXP2_POLYNOMIAL), whole.astype(mx.int32)
    none = fixed(NONE, exponents)
    kappa = mx.where(visible, exponents, none)
    weighted = mx.where(visible, exponents + v.e.swapaxes(1, 2)[:, :, None], none)
    peak, top = kappa.max(axis=-1, keepdims=True), weighted.max(axis=-1, keepdims=True)
    mass = _integers(gain, kappa - (peak - fixed(contract.TOTAL_BITS, peak)))
    total = round_wide(exact_sum(mass, -1, MASS))
    w = _integers(gain, weighted - (top - fixed(contract.WEIGHT_BITS, top)))
    peak, top = peak.squeeze(-1), top.squeeze(-1)
    sides = mx.concatenate([*planes(w)], axis=2)
    turned = v.q.transpose(0, 2, 1, 3, 4).reshape(*v.q.shape[:1], v.q.shape[2], TILE, -1)
    return Sums(total, peak, dot_of_planes(sides, turned), top)


def _scores(q: Rows, k: Planes, constants: contract.ScoreConstants) -> mx.array:
    """Base-2 logarithms of the weights: [tiles, groups, queries, 64]."""
    count_, _, groups, _, dim = k.q.shape
    turned = k.q.transpose(0, 2, 3, 1, 4).reshape(count_, groups, 2 * TILE, dim)
    dots = dot_of_planes(q.q[None], turned.swapaxes(2, 3))
    shift = q.e[:, :, None] + k.e.swapaxes(1, 2)[:, :, None]
    scores = (dots * fixed(float(constants.factor), dots)) * exp2_int(shift)
    if constants.cap:
        capped = tanh(scores * float(constants.inverse_cap)) * float(constants.cap)
        scores = capped * LOG2_E
    return mx.minimum(mx.maximum(scores, fixed(-LIMIT, scores)), fixed(LIMIT, scores))


def _integers(gain: mx.array, exponent: mx.array) -> mx.array:
    """rint(gain·2^exponent): int32. It is 0 below 2⁻⁶⁰, and where a key is not visible."""
    return mx.round(gain * exp2_int(mx.maximum(exponent, fixed(-64, exponent)))).astype(mx.int32)


def _whole(parts: Sums, tiles: range) -> Sums:
    """Tiles added to runs, runs to the whole: without the axis of tiles."""
    runs = range(tiles.start // RUN_TILES, (tiles.stop - 1) // RUN_TILES + 1)
    before = tiles.start - runs.start * RUN_TILES
    after = runs.stop * RUN_TILES - tiles.stop
    found: list[mx.array] = []
    for values, exponents in ((parts.total, parts.peak), (parts.output, parts.top)):
        if len(runs) > 1:
            values = _split_runs(values, before, after, 0.0)
            exponents = _split_runs(exponents, before, after, NONE)
            values, exponents = merged(values, exponents)
        found += merged(values, exponents)
    return Sums(*found)


def _split_runs(x: mx.array, before: int, after: int, fill: float) -> mx.array:
    """[tiles, …] as [16, runs, …], filled up with empty tiles."""
    widths = [(before, after)] + [(0, 0)] * (x.ndim - 1)
    padded = mx.pad(x, widths, constant_values=mx.array(fill, x.dtype))
    return padded.reshape(-1, RUN_TILES, *x.shape[1:]).swapaxes(0, 1)


def _normalised(sums: Sums, how: Geometry, rows: int, each: int) -> mx.array:
    total, peak = sums.total, sums.peak
    if how.sinks is not None:
        sinks = mx.repeat(how.sinks.reshape(-1, 1, each), rows, axis=1).reshape(total.shape)
        score = mx.minimum(mx.maximum(sinks * LOG2_E, -LIMIT), LIMIT)
        whole = mx.round(score)
        gain = horner(score - whole, EXP2_POLYNOMIAL) * 2.0**contract.TOTAL_BITS
        pair = mx.stack([total, gain]), mx.stack([peak, whole.astype(mx.int32)])
        total, peak = merged(*pair)
    shift = sums.top - peak
    shift = shift + fixed(contract.TOTAL_BITS - contract.WEIGHT_BITS, shift)
    if how.block == 0:  # a row sees itself
        return (sums.output * inverse(total)[..., None]) * power(shift, -126)[..., None]
    empty = sums.top == NONE  # no block that was chosen holds a visible key
    scale = power(mx.where(empty, 0, shift), lowest=-126)[..., None]
    y = (sums.output * inverse(mx.where(empty, 1.0, total))[..., None]) * scale
    return mx.where(empty[..., None], 0.0, y)


def choose_blocks(
    q: Rows, keys: Planes, positions: mx.array, last: int, size: int, top: int, local: int
) -> mx.array:
    """The `local` last blocks and those with the largest scores, ascending: int32 [rows, H, top].

    See `cortiq.numerics.blocks.choose_blocks`; `last` is the highest position.
    """
    rows, heads, dim = q.q.shape
    seen, blocks = last + 1, last // size + 1
    left = mx.concatenate([*planes(q.q.reshape(-1, dim))], axis=0)
    right = keys.q[:seen, 0].transpose(1, 0, 2).reshape(-1, dim).T
    dots = dot_of_planes(left, right).reshape(rows, heads, seen)
    scores = dots * exp2_int(q.e[..., None] + keys.e[:seen, 0].astype(mx.int32))
    hidden = mx.arange(seen) > positions[:, None, None]
    scores = mx.where(hidden, LOWEST, scores)
    widths = [(0, 0), (0, 0), (0, blocks * size - seen)]
    scores = mx.pad(scores, widths, constant_values=mx.array(LOWEST))
    best = scores.reshape(rows, heads, blocks, size).max(axis=-1)
    # The list may go on past the blocks that there are.
    best = mx.pad(best, [(0, 0), (0, 0), (0, top)], constant_values=mx.array(LOWEST))
    index = mx.arange(blocks + top)
    behind = (positions // size + 1)[:, None, None]
    late = mx.where(index >= behind, 2, mx.where(index >= behind - local, 0, 1))
    return first(descending(best), top, mx.broadcast_to(late, best.shape))
