"""Attention in base 2 with integer exponents: a tile of 64 keys is a pure function of its query.

Softmax weights are 2^s = g·2^κ with κ = rint(s) an integer and g = 2^(s−κ) in [2^−½, 2^½]. Sums
over the keys of a tile are integers; sums over tiles are rescaled by powers of two only. Tiles lie
at absolute positions [64i, 64i+64) and are added in order in runs of 16, runs in order to the
whole, so that no bit depends on where a chunk, a page or a shard begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import (
    F32,
    RUN_TILES,
    TILE,
    Flags,
    Floats,
    Ints,
    exp2_int,
    round_to_f32,
    snap,
)
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.scalar import log
from cortiq.numerics.scores import (
    LOG2_E_F32,
    SCORE_LIMIT,
    ScoreConstants,
    distance_bias,
    score,
    scoring,
    split_score,
    steepness,
)

LN_2_F32 = F32(0.6931471805599453)
NO_MASS = F32(-(2.0**15))
"""The logarithm of a sum of no terms, for merging: all others are above −2¹⁴."""
TOTAL_BITS = 21
"""Fraction bits of a softmax weight in the denominator, relative to its tile's largest."""
WEIGHT_BITS = 14
"""Fraction bits of a softmax weight times its value row's 2^e, relative to its tile's largest."""
FORGET = -60
"""Below 2^FORGET a rescaling counts as 0."""
ATTENTION_TYPICAL_ERROR = 3e-4
"""Error for normal q, k, v with scores of standard deviation 1, relative to the row's largest."""


class PartialAttention(NamedTuple):
    """Contribution of some keys, per head: the denominator total·2^(peak−21) and the numerator
    output·2^(output_peak−14).

    total float32 [heads], peak int32 [heads]; output float32 [heads, Dv], output_peak int32
    [heads].
    """

    total: Floats
    peak: Ints
    output: Floats
    output_peak: Ints


class ChosenBlocks(NamedTuple):
    """Keys j of the blocks j // size in `chosen`; others are not visible."""

    size: int
    chosen: npt.NDArray[np.integer]


def power(n: Ints, lowest: int = FORGET) -> Floats:
    """Return δ(n): 2^n, or 0 for n < lowest."""
    n = np.asarray(n, np.int32)
    return np.where(n < lowest, F32(0), exp2_int(np.maximum(n, lowest)))


def tile(
    q: Quantised,
    keys: Quantised,
    values: Quantised,
    constants: ScoreConstants,
    bias: Floats | None = None,
) -> PartialAttention:
    """Return the contribution of one tile's visible keys (1 to 64), by integer sums only.

    K = max κ; E = max(κ + ev); total = RN(Σ rint(g·2^(21+κ−K)));
    w = rint(g·2^(14+κ+ev−E)); output = RN(Σ w·v). Exponents below −60 give 0.

    Parameters
    ----------
    q : rows [heads, Dk]; keys : rows [keys, Dk]; values : rows [keys, Dv]; heads share the keys.
    bias : see `score`.
    """
    g, kappa = split_score(score(q, keys, constants, bias))
    peak = kappa.max(axis=1)
    total = np.rint(g * power(TOTAL_BITS + kappa - peak[:, None])).astype(np.int64).sum(axis=1)
    scaled = kappa + values.e
    output_peak = scaled.max(axis=1)
    w = np.rint(g * power(WEIGHT_BITS + scaled - output_peak[:, None])).astype(np.int64)
    output = w @ values.q.astype(np.int64)
    return PartialAttention(round_to_f32(total), peak, round_to_f32(output), output_peak)


def merge(before: PartialAttention | None, after: PartialAttention) -> PartialAttention:
    """Add a later contribution to an earlier one; None is the empty state.

    M' = max(M, K); l = RN(l·δ(M−M')) + RN(L·δ(K−M')); the output likewise with its own peaks.
    """
    if before is None:
        return after
    peak = np.maximum(before.peak, after.peak)
    output_peak = np.maximum(before.output_peak, after.output_peak)
    total = before.total * power(before.peak - peak) + after.total * power(after.peak - peak)
    kept = before.output * power(before.output_peak - output_peak)[:, None]
    added = after.output * power(after.output_peak - output_peak)[:, None]
    return PartialAttention(total, peak, kept + added, output_peak)


def add_sinks(state: PartialAttention, sinks: Floats) -> PartialAttention:
    """Add a learned logit per head to the denominator, after all keys.

    s = RN(sink·RN(log₂ e)), clamped to ±16384; L = g·2²¹ with peak κ, merged into the total only.
    """
    s = np.minimum(np.maximum(sinks * LOG2_E_F32, -SCORE_LIMIT), SCORE_LIMIT)
    g, kappa = split_score(s)
    peak = np.maximum(state.peak, kappa)
    sink_total = g * exp2_int(TOTAL_BITS)
    total = state.total * power(state.peak - peak) + sink_total * power(kappa - peak)
    return state._replace(total=total, peak=peak)


def normalise(state: PartialAttention) -> Floats:
    """Return RN(RN(output·RN(1/total))·2^(N−M+7)), float32 [heads, Dv], not yet snapped.

    2^n below n = −126 is 0 here: the result is far below 2⁻⁴⁰ anyway.
    """
    shift = state.output_peak - state.peak + np.int32(TOTAL_BITS - WEIGHT_BITS)
    inverse = F32(1) / state.total
    return (state.output * inverse[:, None]) * power(shift, lowest=-126)[:, None]


def log_mass(state: PartialAttention) -> Floats:
    """Return log Σ e^score, float32 [heads]: snap(RN(log(total) + RN(f32(M − 21)·RN(ln 2))))."""
    exponent = (state.peak - np.int32(TOTAL_BITS)).astype(F32)
    return snap(log(state.total) + exponent * LN_2_F32)


def first_visible(position: int, window: int) -> int:
    """Return the first key visible at `position`: max(0, position − window + 1); 0 = no window."""
    return max(0, position - window + 1) if window else 0


def visible_tiles(
    position: int, window: int, own: int | None = None
) -> list[list[tuple[int, int]]]:
    """Return ranges [start, stop) of visible keys, one a tile, grouped by run, none empty.

    Parameters
    ----------
    position : the last visible key. own : position that the window counts back from, if another.
    """
    first = first_visible(position if own is None else own, window)
    runs: dict[int, list[tuple[int, int]]] = {}
    for index in range(first // TILE, position // TILE + 1):
        start, stop = max(first, index * TILE), min(position + 1, (index + 1) * TILE)
        runs.setdefault(index // RUN_TILES, []).append((start, stop))
    return list(runs.values())


def attend_keys(
    q: Quantised,
    keys: Quantised,
    values: Quantised,
    position: int,
    constants: ScoreConstants,
    window: int = 0,
    blocks: ChosenBlocks | None = None,
    own: int | None = None,
    steep: Floats | None = None,
) -> PartialAttention | None:
    """Attend to all visible keys for the query heads [heads, Dk] of a KV head; None for none."""
    state: PartialAttention | None = None
    for run in visible_tiles(position, window, own):
        partial: PartialAttention | None = None
        for start, stop in run:
            seen = np.arange(start, stop)
            if blocks is not None:
                seen = seen[np.isin(seen // blocks.size, blocks.chosen)]
            if len(seen):
                key_rows = Quantised(keys.q[seen], keys.e[seen])
                value_rows = Quantised(values.q[seen], values.e[seen])
                bias = None
                if steep is not None:
                    bias = distance_bias(steep, seen, position if own is None else own)
                partial = merge(partial, tile(q, key_rows, value_rows, constants, bias))
        state = state if partial is None else merge(state, partial)
    return state


def attend(
    q: Quantised,
    keys: Quantised,
    values: Quantised,
    positions: npt.NDArray[np.integer],
    scale: float,
    *,
    window: int = 0,
    soft_cap: float | None = None,
    sinks: Floats | None = None,
    blocks: ChosenBlocks | None = None,
    faults: Flags | None = None,
    own: npt.NDArray[np.integer] | None = None,
    mass: Floats | None = None,
    slopes: Sequence[float] = (),
) -> Floats:
    """Compute attention of one sequence's rows: float32 [rows, H, Dv].

    Row i sees keys max(0, o−window+1) … p, p = positions[i], o = own[i], which is p where rows see
    nothing after themselves; whatever else the cache holds is not read. Query head h uses KV head
    h // (H/KV). A row that sees no key (p < 0) is +0. With `blocks`, chosen int [rows, sets, n], a
    head sees only keys of the blocks that its set h // (H/sets) names.

    Parameters
    ----------
    q : rows [rows, H, Dk]; keys : rows [S, KV, Dk]; values : rows [S, KV, Dv]; S > every position.
    scale : softmax scale, float64. window : visible keys, 0 for all.
    soft_cap : C of C·tanh(s/C), in natural units. sinks : float32 [H] logits, or None.
    mass : float32 [rows, H] for each row's `log_mass`, or None.
    slopes : of each head, float64: scores lose slope·(o − j), in natural units; none if empty.
    """
    constants, steep = scoring(scale, soft_cap), steepness(slopes)
    rows, heads, _ = q.q.shape
    kv_heads, sets = keys.q.shape[1], blocks.chosen.shape[1] if blocks else 1
    parts = max(kv_heads, sets)
    out = np.zeros((rows, heads, values.q.shape[2]), F32)
    mass = np.zeros((rows, heads), F32) if mass is None else mass
    mass[:] = NO_MASS
    for row, part in np.ndindex(rows, parts):
        head = slice(part * heads // parts, (part + 1) * heads // parts)
        kv = part * kv_heads // parts
        state = attend_keys(
            Quantised(q.q[row, head], q.e[row, head]),
            Quantised(keys.q[:, kv], keys.e[:, kv]),
            Quantised(values.q[:, kv], values.e[:, kv]),
            int(positions[row]),
            constants,
            window,
            blocks and ChosenBlocks(blocks.size, blocks.chosen[row, part * sets // parts]),
            None if own is None else int(own[row]),
            steep[head] if slopes else None,
        )
        if state is None:
            continue
        if sinks is not None:
            state = add_sinks(state, np.asarray(sinks, F32)[head])
        out[row, head], mass[row, head] = normalise(state), log_mass(state)
    return snap(out, faults)
