"""Depth with the most tokens a second, given acceptance rates and round times.

`hold[j − 1]` is the running share of rounds in which draft j held, among those in which drafts 1 to
j − 1 did. A round of k drafts is then expected to bring T(k) = 1 + Σ_{i ≤ k} Π_{j ≤ i} hold_j
tokens: the drafts that hold, and the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

BETTER = 1.04
"""A depth replaces another only when it is this much faster: prices are noisy."""
ACCEPTANCE_WEIGHT = 0.1
SURE, DRIFT = 0.9, 0.005
"""Where the deepest draft holds this often, deeper ones drift towards it and so get tried."""
ACCEPTANCE_PRIOR = (0.80, 0.75, 0.50, 0.67, 0.65, 0.69, 0.67)
"""Before anything was seen: what a draft head's chain holds."""

AcceptanceRates = tuple[float, ...]


def expected_tokens(hold: Sequence[float]) -> list[float]:
    """Return T(1), T(2), … for as many depths as `hold` has."""
    return list(accumulate(accumulate(hold, mul), initial=1.0))[1:]


def planned_depth(
    cost: Sequence[float], hold: Sequence[float], draft: float = 0.0, step: float = 0.0
) -> tuple[int, float]:
    """Return the depth to draft at, and its rate in tokens for the time of a plain one.

    Depths are gone through upwards; one takes over only when its rate T(k)/(cost_k + draft +
    step·k) is more than `BETTER` times that of the depth kept so far.

    Parameters
    ----------
    cost : of verifying 1, 2, … drafts, in plain tokens.
    draft, step : of drafting: once a round, and once a draft.
    """
    kept, best = 1, 0.0
    for k, (price, tokens) in enumerate(zip(cost, expected_tokens(hold), strict=False), 1):
        rate = tokens / (price + draft + step * k)
        if rate > BETTER * best:
            kept, best = k, rate
    return kept, best


def updated_acceptance(hold: Sequence[float], depth: int, accepted: int) -> AcceptanceRates:
    """Return the rates after a round of `depth` drafts of which `accepted` held.

    Drafts 1 to accepted + 1 were tested; their averages move by `ACCEPTANCE_WEIGHT`. Where the
    deepest draft of the round holds nearly always, deeper ones drift towards it.
    """
    depth = max(1, min(depth, len(hold)))
    moved = list(hold)
    for j in range(min(depth, accepted + 1)):
        moved[j] += ACCEPTANCE_WEIGHT * ((accepted > j) - moved[j])
    last = moved[depth - 1]
    if last >= SURE:
        for j in range(depth, len(moved)):
            moved[j] += DRIFT * (last - moved[j])
    return tuple(moved)


def estimated_wall(walls: Sequence[float], depth: int) -> float:
    """Return the time of a round of `depth` drafts, by the times measured so far (0: not yet).

    A depth that was not timed lies on the line through the two timed ones nearest to it, whose
    slope is at least 0; it costs at least half of the lower one. Two depths must be timed.
    """
    if walls[depth - 1] > 0:
        return walls[depth - 1]
    low, high, *others = (k for k, wall in enumerate(walls, 1) if wall > 0)
    for k in others:
        farther = low if abs(low - depth) >= abs(high - depth) else high
        if abs(k - depth) < abs(farther - depth):
            low, high = sorted({low, high, k} - {farther})
    first, second = walls[low - 1], walls[high - 1]
    slope = max(0.0, (second - first) / (high - low))
    return max(first + slope * (depth - low), 0.5 * first)


def depth_by_walls(
    hold: Sequence[float],
    walls: Sequence[float],
    now: int,
    least: int,
    most: int,
    others: int = 0,
) -> int | None:
    """Return the depth with the best T(k)/wall(k), or `now` where that is not `BETTER` times as
    good.

    Parameters
    ----------
    walls : of rounds of 1, 2, … drafts, 0 for depths that were not timed.
    least, most : depths to look at, both included.
    others : sequences that wait for the same round and get one token each from it; they count.

    Returns
    -------
    None when fewer than two depths were timed: prices are not known then.
    """
    if sum(wall > 0 for wall in walls) < 2:
        return None
    least, most = (max(1, min(k, len(walls))) for k in (least, most))
    now = max(least, min(now, most))
    tokens = expected_tokens(hold)
    rates = {k: (others + tokens[k - 1]) / estimated_wall(walls, k) for k in range(least, most + 1)}
    best = max(rates, key=lambda k: (rates[k], k))
    return best if rates[best] > BETTER * rates[now] else now
