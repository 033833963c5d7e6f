"""Attention over a sequence's rows, vectorised over heads, queries and the tiles of a run.

The pieces and their order are those of `numerics.attention`; only the loops are turned inside out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.numerics import attention as contract
from cortiq.numerics.contract import F32, RUN_TILES, TILE, Flags, Floats, Ints, exp2_int, snap
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.scalar import tanh

NONE = np.int32(-(1 << 20))
"""Exponent of an empty sum: below every real one."""


@dataclass(frozen=True)
class TileGeometry:
    """Constants of an attention layer: see `cortiq.ir.ops.Attend`."""

    constants: contract.ScoreConstants
    window: int | None
    sinks: Floats | None
    block: int = 0
    slopes: tuple[float, ...] = ()


class _Integers(NamedTuple):
    """Quantised rows whose q is held in float64, for exact matrix products."""

    q: npt.NDArray[np.float64]
    e: Ints


def attend(
    q: Quantised,
    keys: Quantised,
    values: Quantised,
    positions: Ints,
    how: TileGeometry,
    faults: Flags,
    chosen: Ints | None = None,
    base: int = 0,
    own: Ints | None = None,
) -> tuple[Floats, Floats]:
    """Attend for one sequence: q [rows, heads, key_dim] over rows [n, kv_heads, dim].

    Parameters
    ----------
    positions : the last key that each row sees. own : what windows count back from, if another.
    chosen : the blocks that each set of heads sees, [rows, sets, n]; None for all.
    base : position of the first key and value, where a tile begins; no window reaches behind it.

    Returns
    -------
    float32 [rows, heads, value_dim], and `numerics.attention.log_mass` [rows, heads].
    """
    rows, heads, _ = q.q.shape
    groups = keys.q.shape[1]
    per_group = heads // groups
    stacked = _by_group(q, groups)
    own = positions if own is None else own
    where = np.repeat(positions, per_group), np.repeat(own, per_group)
    admitted = None if chosen is None else _admitted(chosen, heads, groups, how.block, positions)
    first = 0 if how.window is None else max(0, int(own[0]) - how.window + 1)
    run = TILE * RUN_TILES
    total = PartialSums((groups, rows * per_group), values.q.shape[2])
    for start in range(first // run * run, int(positions[-1]) + 1, run):
        low = max(start, first // TILE * TILE)
        stop = min(start + run, int(positions[-1]) + 1)
        part = _run(stacked, keys, values, where, (low, stop), how, admitted, base)
        total.merge(part)
    out = _finish(total, how, per_group, rows)
    out = out.reshape(groups, rows, per_group, -1).transpose(1, 0, 2, 3)
    mass = _log_mass(total).reshape(groups, rows, per_group).transpose(1, 0, 2)
    return snap(np.ascontiguousarray(out).reshape(rows, heads, -1), faults), mass.reshape(rows, -1)


def _by_group(q: Quantised, groups: int) -> _Integers:
    """Reshape [rows, heads, dim] to [groups, rows · heads/groups, dim], as float64 integers."""
    rows, heads, dim = q.q.shape
    split = q.q.reshape(rows, groups, heads // groups, dim).transpose(1, 0, 2, 3)
    exponents = q.e.reshape(rows, groups, heads // groups).transpose(1, 0, 2)
    return _Integers(
        split.reshape(groups, -1, dim).astype(np.float64), exponents.reshape(groups, -1)
    )


def _admitted(chosen: Ints, heads: int, groups: int, block: int, positions: Ints) -> Flags:
    """Return the blocks visible to each [group, query]: bool, with a last one that is no block."""
    rows, sets, _ = chosen.shape
    count = int(positions[-1]) // block + 2
    table = np.zeros((rows, sets, count), np.bool_)
    np.put_along_axis(table, np.minimum(chosen, count - 1), True, axis=-1)
    table[..., -1] = False
    of_heads = np.repeat(table, heads // sets, axis=1).reshape(rows, groups, -1, count)
    return of_heads.transpose(1, 0, 2, 3).reshape(groups, -1, count)


class PartialSums:
    """Numerator o with exponent N, denominator `mass` with exponent M, of [groups, queries]."""

    def __init__(self, shape: tuple[int, int], value_dim: int) -> None:
        self.m, self.n = np.full(shape, NONE), np.full(shape, NONE)
        self.mass = np.zeros(shape, F32)
        self.o = np.zeros((*shape, value_dim), F32)

    def add(self, mass: Floats, m: Ints, o: Floats, n: Ints) -> None:
        """Accumulate one more part; empty parts change nothing, an empty state is replaced."""
        self.mass, self.m = _join(self.mass, self.m, mass, m)
        self.o, self.n = _join(self.o, self.n, o, n)

    def merge(self, other: PartialSums) -> None:
        """Accumulate a run."""
        self.add(other.mass, other.m, other.o, other.n)


def _join(a: Floats, ea: Ints, b: Floats, eb: Ints) -> tuple[Floats, Ints]:
    top = np.maximum(ea, eb)
    fa, fb = contract.power(ea - top), contract.power(eb - top)
    if a.ndim > ea.ndim:
        fa, fb = fa[..., None], fb[..., None]
    return a * fa + b * fb, top


def _run(
    q: _Integers,
    keys: Quantised,
    values: Quantised,
    where: tuple[Ints, Ints],
    span: tuple[int, int],
    how: TileGeometry,
    admitted: Flags | None,
    base: int,
) -> PartialSums:
    low, stop = span
    tiles = -(-(stop - low) // TILE)
    k, v = (_tiles(rows, low - base, stop - base, tiles) for rows in (keys, values))
    at = (low + np.arange(tiles * TILE, dtype=np.int32)).reshape(tiles, 1, 1, TILE)
    scores = _scores(q, k, how, at - where[1][None, None, :, None])
    visible = at <= where[0][None, None, :, None]
    if how.window is not None:
        visible &= at > where[1][None, None, :, None] - np.int32(how.window)
    if admitted is not None:
        blocks = np.minimum(at.ravel() // how.block, admitted.shape[-1] - 1)
        there = admitted[:, :, blocks].reshape(*admitted.shape[:2], tiles, TILE)
        visible = visible & there.transpose(2, 0, 1, 3)
    gain, whole = contract.split_score(scores)
    kappa = np.where(visible, whole, NONE)
    weighted = np.where(visible, kappa + v.e[:, :, None, :], NONE)
    m, n = kappa.max(axis=-1), weighted.max(axis=-1)
    mass = _integers(gain, contract.TOTAL_BITS + kappa - m[..., None], visible).sum(axis=-1)
    w = _integers(gain, contract.WEIGHT_BITS + weighted - n[..., None], visible)
    o = np.matmul(w, v.q).astype(F32)
    sums = PartialSums(m.shape[1:], o.shape[-1])
    for tile in range(tiles):
        sums.add(mass[tile].astype(F32), m[tile], o[tile], n[tile])
    return sums


def _tiles(rows: Quantised, low: int, stop: int, tiles: int) -> _Integers:
    """Return rows low…stop−1 as [tiles, heads, 64, dim] float64, zero past the end."""
    _, heads, dim = rows.q.shape
    q = np.zeros((tiles * TILE, heads, dim))
    e = np.zeros((tiles * TILE, heads), np.int32)
    q[: stop - low], e[: stop - low] = rows.q[low:stop], rows.e[low:stop]
    split = q.reshape(tiles, TILE, heads, dim).transpose(0, 2, 1, 3)
    return _Integers(split, e.reshape(tiles, TILE, heads).transpose(0, 2, 1))


def _scores(q: _Integers, k: _Integers, how: TileGeometry, ahead: Ints) -> Floats:
    """Compute s of every (tile, group, query, key), clamped: base-2 logarithms of the weights.

    ahead : positions of keys less those of their queries, [tiles, 1, queries, 64].
    """
    dots = np.matmul(q.q, k.q.transpose(0, 1, 3, 2)).astype(F32)
    powers = exp2_int(q.e[None, :, :, None] + k.e[:, :, None, :])
    constants = how.constants
    scores = (dots * constants.factor) * powers
    if constants.cap:
        scores = (constants.cap * tanh(scores * constants.inverse_cap)) * contract.LOG2_E_F32
    if how.slopes:
        groups, queries = q.e.shape
        steep = contract.steepness(how.slopes).reshape(groups, -1)
        steep = np.tile(steep, (1, queries // steep.shape[1]))[None, :, :, None]
        scores = scores + steep * ahead.astype(F32)
    limit = contract.SCORE_LIMIT
    return np.minimum(np.maximum(scores, -limit), limit)


def _integers(gain: Floats, exponent: Ints, visible: npt.NDArray[np.bool_]) -> npt.NDArray:
    """Compute rint(gain·2^exponent) of the visible keys, as float64 integers."""
    scaled = np.rint(gain * contract.power(exponent))
    return np.where(visible, scaled, F32(0)).astype(np.float64)


def _log_mass(total: PartialSums) -> Floats:
    """Return the logarithm of the denominators, after the sinks."""
    empty = total.n == NONE
    mass, peak = np.where(empty, F32(1), total.mass), np.where(empty, 0, total.m)
    known = contract.PartialAttention(mass, peak, total.o, total.n)
    return np.where(empty, contract.NO_MASS, contract.log_mass(known))


def _finish(total: PartialSums, how: TileGeometry, per_group: int, rows: int) -> Floats:
    if how.sinks is not None:
        sinks = np.tile(how.sinks.reshape(-1, 1, per_group), (1, rows, 1)).reshape(total.m.shape)
        limit = contract.SCORE_LIMIT
        score = np.minimum(np.maximum(sinks * contract.LOG2_E_F32, -limit), limit)
        gain, whole = contract.split_score(score)
        gain = gain * exp2_int(contract.TOTAL_BITS)
        total.mass, total.m = _join(total.mass, total.m, gain, whole)
    empty = total.n == NONE
    inverse = F32(1) / np.where(empty, F32(1), total.mass)
    shift = np.where(empty, 0, total.n - total.m + contract.TOTAL_BITS - contract.WEIGHT_BITS)
    y = (total.o * inverse[..., None]) * contract.power(shift, lowest=-126)[..., None]
    return np.where(empty[..., None], F32(0), y)
