"""Shares: the part of a value, or of a weight, that each rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Range = tuple[int, int]
"""First index, and the one after the last."""
ALIGNED = 32
"""Columns that shares of wide rows are whole multiples of."""


EXPERTS = -1
"""In the place of an axis: rank r has the rows of a value whose experts are its own."""


@dataclass(frozen=True)
class Split:
    """A row value cut along one axis, of which every rank has a range of each section.

    Every rank has at least one index of a section. Where a section has fewer units than there are
    ranks, neighbours have the same range, and the first of them counts as its owner.

    Attributes
    ----------
    axis : 0, or 1 for the last axis of values of two, or `EXPERTS`: rows of chosen experts, of
        which those of other ranks' experts mean nothing here. Of a slot: of its exported array.
    length : size of that axis of the whole value, or the number of experts.
    sections : ranges of the axis by rank, for each of its consecutive sections. Only values that
        hold several one after the other, as queries, keys and values, have more than one.
    """

    axis: int
    length: int
    sections: tuple[tuple[Range, ...], ...]

    def local(self, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's part of a value of this shape."""
        if self.axis == EXPERTS:
            return shape
        return (*shape[: self.axis], self.size(rank), *shape[self.axis + 1 :])

    def size(self, rank: int) -> int:
        """Return how many indices a rank has."""
        return sum(stop - start for start, stop in self.pieces(rank))

    def pieces(self, rank: int) -> tuple[Range, ...]:
        """Return the indices that a rank has: one range of each section, neighbours joined."""
        found = list[Range]()
        for ranges in self.sections:
            start, stop = ranges[rank]
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, stop))
        return tuple(found)

    def only(self, rank: int) -> Range:
        """Return a rank's range of a value of one section, as experts and tables are."""
        ((start, stop),) = self.pieces(rank)
        return start, stop

    def owned(self, rank: int) -> tuple[tuple[int, Range], ...]:
        """Return the ranges that a rank owns, each with its place in the rank's part.

        Those of all ranks add up to the whole: they are empty where a rank repeats the one before.
        """
        found, at = [], 0
        for ranges in self.sections:
            start, stop = ranges[rank]
            repeats = rank > 0 and ranges[rank - 1] == ranges[rank]
            found.append((at, (start, start if repeats else stop)))
            at += stop - start
        return tuple(found)

    def places(self, start: int, stop: int, rank: int) -> Range | None:
        """Return where a rank's part has its share of some sections; None if these are none."""
        borders = [ranges[0][0] for ranges in self.sections]
        if start not in borders or stop not in (*borders, self.length):
            return None
        sizes = [ranges[rank][1] - ranges[rank][0] for ranges in self.sections]
        before, until = (
            sum(size for border, size in zip(borders, sizes, strict=True) if border < at)
            for at in (start, stop)
        )
        return before, until


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
