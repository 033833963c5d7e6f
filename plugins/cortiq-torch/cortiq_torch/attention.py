"""Attention over one sequence's rows: integers within a tile, powers of two between tiles.

Everything is written for all heads, queries and tiles of a run at once; runs follow in order. See
`cortiq.numerics.attention` for what each step is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cortiq.numerics import attention as contract
from cortiq.numerics.contract import RUN_TILES, TILE
from cortiq.numerics.scalar import EXP2_POLYNOMIAL
from cortiq_torch.arithmetic import Rows, exp2_int, horner, inverse, tanh

NONE = -(1 << 20)
"""Exponent of an empty sum: far below every real one."""
RUN = TILE * RUN_TILES
LOG2_E = float(contract.LOG2_E_F32)
LIMIT = float(contract.SCORE_LIMIT)
LOWEST = -(2.0**126)
"""Below the score of every key."""


@dataclass(frozen=True)
class Geometry:
    """What a layer fixes: constants of the scores, window, sinks [heads] or None, block size."""

    constants: contract.ScoreConstants
    window: int | None
    sinks: Tensor | None
    block: int = 0


@dataclass
class Sums:
    """Numerator `output`·2^`top` and denominator `total`·2^`peak` of [groups, queries]."""

    total: Tensor
    peak: Tensor
    output: Tensor
    top: Tensor

    def add(self, other: Sums) -> Sums:
        """Both; an empty part changes nothing, an empty state is replaced."""
        total, peak = _joined(self.total, self.peak, other.total, other.peak)
        output, top = _joined(self.output, self.top, other.output, other.top)
        return Sums(total, peak, output, top)


def _joined(a: Tensor, ea: Tensor, b: Tensor, eb: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.maximum(ea, eb)
    fa, fb = power(ea - top), power(eb - top)
    if a.ndim > ea.ndim:
        fa, fb = fa[..., None], fb[..., None]
    return a * fa + b * fb, top


def power(n: Tensor, lowest: int = contract.FORGET) -> Tensor:
    """2ⁿ, or 0 below `lowest`."""
    return torch.where(n < lowest, 0.0, exp2_int(n.clamp(min=lowest)))


def attend(
    q: Rows,
    keys: Rows,
    values: Rows,
    positions: Tensor,
    span: tuple[int, int],
    how: Geometry,
    chosen: Tensor | None = None,
    base: int = 0,
) -> Tensor:
    """One sequence: q [rows, heads, dim] over rows [n, kv heads, dim]; float32, not snapped.

    span : the lowest and the highest position of the rows, as the host knows them.
    chosen : the blocks that each set of heads sees, int32 [rows, sets, n]; None for all.
    base : position of the first key and value, where a tile begins; no window reaches behind it.
    """
    rows, heads, _ = q.q.shape
    groups = keys.q.shape[1]
    each = heads // groups
    queries = _by_group(q, groups)
    at = positions.repeat_interleave(each)
    low, stop = span[0], span[1] + 1
    first = 0 if how.window is None else max(0, low - how.window + 1)
    admitted = None
    if chosen is not None:
        admitted = _admitted(chosen, heads, groups, span[1] // how.block + 1)
    sums = None
    for start in range(first // RUN * RUN, stop, RUN):
        cut = max(start, first // TILE * TILE), min(start + RUN, stop)
        part = _run(queries, keys, values, at, cut, how, admitted, base)
        sums = part if sums is None else sums.add(part)
    assert sums is not None
    y = _normalised(sums, how, rows, each)
    return y.unflatten(1, (rows, each)).transpose(0, 1).reshape(rows, heads, -1)


def _by_group(q: Rows, groups: int) -> Rows:
    """[rows, heads, dim] as [groups, rows · heads a group, dim]."""
    split = q.q.unflatten(1, (groups, -1)).transpose(0, 1).flatten(1, 2)
    return Rows(split, q.e.unflatten(1, (groups, -1)).transpose(0, 1).flatten(1))


def _admitted(chosen: Tensor, heads: int, groups: int, blocks: int) -> Tensor:
    """Blocks that each [group, query] sees: bool, with a last one that is no block."""
    rows, sets, _ = chosen.shape
    table = torch.zeros(rows, sets, blocks + 1, dtype=torch.bool, device=chosen.device)
    table.scatter_(-1, chosen.long().clamp(max=blocks), True)
    table[..., -1] = False
    of_heads = table.repeat_interleave(heads // sets, dim=1).unflatten(1, (groups, -1))
    return of_heads.transpose(0, 1).flatten(1, 2)


def _run(
    q: Rows,
    keys: Rows,
    values: Rows,
    at: Tensor,
    cut: tuple[int, int],
    how: Geometry,
    admitted: Tensor | None,
    base: int,
) -> Sums:
    """The tiles of a run, each by integers only, then added in order."""
    low, stop = cut
    k, v = (_tiles(rows, low - base, stop - base) for rows in (keys, values))
    scores = _scores(q, k, how.constants)
    where = torch.arange(low, low + len(k.q) * TILE, device=at.device).reshape(-1, 1, 1, TILE)
    visible = where <= at[:, None]
    if how.window is not None:
        visible &= where > at[:, None] - how.window
    if admitted is not None:
        blocks = (where.flatten() // how.block).clamp(max=admitted.shape[-1] - 1)
        there = admitted[:, :, blocks].unflatten(2, (-1, TILE))
        visible = visible & there.permute(2, 0, 1, 3)
    whole = scores.round()
    gain, exponents = horner(scores - whole, EXP2_POLYNOMIAL), whole.int()
    kappa = torch.where(visible, exponents, NONE)
    weighted = torch.where(visible, exponents + v.e[:, :, None], NONE)
    peak, top = kappa.amax(dim=-1), weighted.amax(dim=-1)
    total = _integers(gain, contract.TOTAL_BITS + kappa - peak[..., None], visible).sum(dim=-1)
    w = _integers(gain, contract.WEIGHT_BITS + weighted - top[..., None], visible)
    parts = Sums(total.float(), peak, (w @ v.q).float(), top)
    sums = Sums(parts.total[0], peak[0], parts.output[0], top[0])
    for tile in range(1, len(total)):
        sums = sums.add(Sums(parts.total[tile], peak[tile], parts.output[tile], top[tile]))
    return sums


def _tiles(rows: Rows, low: int, stop: int) -> Rows:
    """Rows low…stop−1 as [tiles, groups, 64, dim], zero past the end."""
    missing = -(stop - low) % TILE
    q = torch.nn.functional.pad(rows.q[low:stop].double(), (0, 0, 0, 0, 0, missing))
    e = torch.nn.functional.pad(rows.e[low:stop].int(), (0, 0, 0, missing))
    return Rows(
        q.unflatten(0, (-1, TILE)).transpose(1, 2), e.unflatten(0, (-1, TILE)).transpose(1, 2)
    )


def _scores(q: Rows, k: Rows, constants: contract.ScoreConstants) -> Tensor:
    """Base-2 logarithms of the weights: [tiles, groups, queries, 64]."""
    dots = (q.q @ k.q.transpose(2, 3)).float()
    scores = (dots * float(constants.factor)) * exp2_int(q.e[:, :, None] + k.e[:, :, None])
    if constants.cap:
        capped = tanh(scores * float(constants.inverse_cap)) * float(constants.cap)
        scores = capped * LOG2_E
    return scores.clamp(-LIMIT, LIMIT)


def _integers(gain: Tensor, exponent: Tensor, visible: Tensor) -> Tensor:
    """rint(gain·2^exponent) of the visible keys, as float64 integers."""
    return torch.where(visible, (gain * power(exponent)).round(), 0.0).double()


def _normalised(sums: Sums, how: Geometry, rows: int, each: int) -> Tensor:
    total, peak = sums.total, sums.peak
    if how.sinks is not None:
        sinks = how.sinks.reshape(-1, 1, each).repeat(1, rows, 1).flatten(1)
        score = (sinks * LOG2_E).clamp(-LIMIT, LIMIT)
        whole = score.round()
        gain = horner(score - whole, EXP2_POLYNOMIAL) * 2.0**contract.TOTAL_BITS
        total, peak = _joined(total, peak, gain, whole.int())
    empty = sums.top == NONE  # no block that was chosen holds a visible key
    shift = sums.top - peak + (contract.TOTAL_BITS - contract.WEIGHT_BITS)
    scale = power(torch.where(empty, 0, shift), lowest=-126)[..., None]
    y = (sums.output * inverse(torch.where(empty, 1.0, total))[..., None]) * scale
    return torch.where(empty[..., None], 0.0, y)


def choose_blocks(
    q: Rows, keys: Rows, positions: Tensor, last: int, size: int, top: int, local: int
) -> Tensor:
    """The `local` last blocks and those with the largest scores, ascending: int32 [rows, H, top].

    See `cortiq.numerics.blocks.choose_blocks`; keys are rows [n, 1, dim], `last` the highest
    position.
    """
    seen, blocks = last + 1, last // size + 1
    dots = (q.q @ keys.q[:seen, 0].double().T).float()
    scores = dots * exp2_int(q.e[..., None] + keys.e[:seen, 0].int())
    hidden = torch.arange(seen, device=positions.device) > positions[:, None, None]
    scores = torch.where(hidden, LOWEST, scores)
    scores = torch.nn.functional.pad(scores, (0, blocks * size - seen), value=LOWEST)
    best = scores.unflatten(-1, (blocks, size)).amax(dim=-1)
    best = torch.nn.functional.pad(best, (0, top), value=LOWEST)  # the list may go on past them
    index = torch.arange(blocks + top, device=positions.device)
    count = (positions // size + 1)[:, None, None]
    rank = torch.where(index >= count, 2, torch.where(index >= count - local, 0, 1))
    order = best.argsort(dim=-1, descending=True, stable=True)
    rank = rank.expand(best.shape).gather(-1, order)
    order = order.gather(-1, rank.argsort(dim=-1, stable=True))
    return order[..., :top].sort(dim=-1).values.int()
