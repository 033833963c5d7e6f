"""Shares: the part of a value, or of a weight, that each rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

Range = tuple[int, int]
"""First index, and the one after the last."""
ALIGNED = 32
"""Columns that shares of wide rows are whole multiples of."""


EXPERTS = -1
"""In the place of an axis: rank r has the rows of a value whose experts are its own."""


@dataclass(frozen=True)
class Split:
    """A row value cut along one axis: rank r has the indices `ranges[r]` of it.

    Every rank has at least one index. Where there are fewer units than ranks, neighbours have the
    same range, and the first of them counts as its owner.

    Attributes
    ----------
    axis : 0, or 1 for the last axis of values of two, or `EXPERTS`: rows of chosen experts, of
        which those of other ranks' experts mean nothing here.
    length : size of that axis of the whole value, or the number of experts.
    """

    axis: int
    length: int
    ranges: tuple[Range, ...]

    def local(self, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's part of a value of this shape."""
        if self.axis == EXPERTS:
            return shape
        start, stop = self.ranges[rank]
        return (*shape[: self.axis], stop - start, *shape[self.axis + 1 :])

    @property
    def owned(self) -> tuple[Range, ...]:
        """Ranges that add up to the whole: empty for a rank that repeats the one before it."""
        before = [(-1, -1), *self.ranges[:-1]]
        return tuple(
            (own[0], own[0]) if own == last else own
            for own, last in zip(self.ranges, before, strict=True)
        )


def divided(units: int, ranks: int) -> tuple[Range, ...]:
    """Divide units among ranks: as evenly as whole units allow, the later ranks have one more.

    With fewer units than ranks every rank still has one, which neighbours share.
    """
    if units < ranks:
        firsts = [rank * units // ranks for rank in range(ranks)]
        return tuple((first, first + 1) for first in firsts)
    unit = ALIGNED if units % ALIGNED == 0 and units >= 2 * ALIGNED * ranks else 1
    cuts = [rank * (units // unit) // ranks * unit for rank in range(ranks + 1)]
    return tuple(pairwise(cuts))


def refined(coarse: Sequence[Range], parts: int) -> tuple[Range, ...]:
    """Divide the `parts` pieces of each unit among the ranks that share it.

    So several ranks take heads of queries of one head of keys.
    """
    found = []
    for range_ in coarse:
        among = [rank for rank, other in enumerate(coarse) if other == range_]
        start, stop = range_
        if len(among) == 1 or stop - start > 1:
            found.append((start * parts, stop * parts))
            continue
        pieces = divided(parts, len(among))
        first, last = pieces[sum(rank < len(found) for rank in among)]
        found.append((start * parts + first, start * parts + last))
    return tuple(found)


def scaled(ranges: Sequence[Range], units: int, length: int) -> tuple[Range, ...]:
    """Return ranges of units as ranges of an axis of `length`, a multiple of the units."""
    size = length // units
    return tuple((start * size, stop * size) for start, stop in ranges)


def common_units(lengths: Sequence[int]) -> int:
    """Return the largest number of units that cuts every one of these lengths evenly."""
    return gcd(*lengths)
