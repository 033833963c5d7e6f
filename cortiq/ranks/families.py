"""Values of a program that are cut, and where: families of values that are cut alike.

A product's outputs can be divided among ranks, since each depends on its own row of the matrix.
What follows value by value, head by head or channel by channel, stays divided; where a row is
needed whole, the parts are put together. So every float is computed by one rank exactly as one
device computes it, and no sum is ever divided: that is why a split changes no bit.

A value that holds several others, as queries, keys and values in one row, has a section for each,
and a section belongs to the family of what is sliced out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd

from cortiq.ranks.shares import Range, Split, divided, refined, scaled

Key = tuple[str, str]
"""A value by (graph, name), or a slot by ("", name)."""
Section = tuple[Key, int]
"""A section of a value, by its first index."""


@dataclass(frozen=True)
class Link:
    """Indices of a value that are cut as those of another are, in proportion."""

    first: Key
    first_range: Range
    second: Key
    second_range: Range

    @property
    def ends(self) -> tuple[tuple[Key, Range], tuple[Key, Range]]:
        """Return both sides."""
        return (self.first, self.first_range), (self.second, self.second_range)


@dataclass
class Families:
    """Values that are cut alike, as rules find them node by node.

    Attributes
    ----------
    axes : of values and slots that can be cut: the axis. lengths : its size.
    by_expert : whether experts are divided among ranks, rather than each one's columns.
    whole : values that cannot be cut after all. links : which are cut alike.
    heads : queries and the keys that they look at.
    """

    by_expert: bool = False
    axes: dict[Key, int] = field(default_factory=dict)
    lengths: dict[Key, int] = field(default_factory=dict)
    whole: set[Key] = field(default_factory=set)
    links: list[Link] = field(default_factory=list)
    heads: list[tuple[Key, Key]] = field(default_factory=list)

    def add(self, key: Key, axis: int, length: int, *others: Key) -> None:
        """Add a value that is cut as others are."""
        self.axes[key], self.lengths[key] = axis, length
        for other in others:
            self.link(key, (0, length), other)

    def link(self, key: Key, part: Range, other: Key, there: Range | None = None) -> None:
        """Have indices of a value cut as those of another, all of it unless said otherwise."""
        self.links.append(Link(key, part, other, there or (0, self.lengths[other])))

    def keep_whole(self, key: Key) -> None:
        """Leave a value uncut, and all that would be cut like it."""
        self.whole.add(key)


def settled(families: Families, ranks: int) -> dict[Key, Split]:
    """Return how each value and slot that is cut is cut."""
    return _Settling(families).splits(ranks)


class _Settling:
    """Sections of values, joined to families, and the ranges of those that can be cut.

    Attributes
    ----------
    borders : of the sections of each value, its two ends among them.
    whole : families that are not cut. units : into how many units each can be cut.
    """

    def __init__(self, families: Families) -> None:
        self.families = families
        self.borders = {key: {0, length} for key, length in families.lengths.items()}
        self.whole = set[Section]()
        self._roots: dict[Section, Section] = {}
        torn = self._spread_borders()
        self.sections = {key: list(pairwise(sorted(at))) for key, at in self.borders.items()}
        for link in families.links:
            if link not in torn:
                self._join(link)
        self.units = self._units()
        for link in torn:
            for key, part in link.ends:
                self._keep_whole(key, part)
        for key in families.whole:
            self._keep_whole(key, (0, families.lengths[key]))
        self._settle_whole()

    def root(self, section: Section) -> Section:
        """Return the family of a section."""
        while self._roots.get(section, section) != section:
            section = self._roots[section]
        return section

    def _spread_borders(self) -> set[Link]:
        """Give values the borders of those that are cut alike; return links that have one within
        a unit, such as a head.
        """
        torn, touching = set[Link](), dict[Key, list[tuple[Range, Key, Range, Link]]]()
        todo = list[tuple[Key, int]]()
        for link in self.families.links:
            for (key, part), (other, there) in (link.ends, link.ends[::-1]):
                touching.setdefault(key, []).append((part, other, there, link))
                todo += [(key, at) for at in part]
        while todo:
            key, at = todo.pop()
            new = at not in self.borders[key]
            self.borders[key].add(at)
            for (start, stop), other, there, link in touching.get(key, ()):
                if not start < at < stop:
                    continue
                beyond, rest = divmod((at - start) * (there[1] - there[0]), stop - start)
                if rest:
                    torn.add(link)
                elif new or there[0] + beyond not in self.borders[other]:
                    todo.append((other, there[0] + beyond))
        return torn

    def _within(self, key: Key, part: Range) -> list[Section]:
        return [(key, start) for start, _ in self.sections[key] if part[0] <= start < part[1]]

    def _join(self, link: Link) -> None:
        mine, theirs = (self._within(key, part) for key, part in link.ends)
        for one, other in zip(mine, theirs, strict=True):
            self._roots.setdefault(self.root(one), self.root(other))
            if self.root(one) != self.root(other):
                self._roots[self.root(one)] = self.root(other)

    def _keep_whole(self, key: Key, part: Range) -> None:
        self.whole |= {self.root(section) for section in self._within(key, part)}

    def _units(self) -> Mapping[Section, int]:
        """Return the largest number of units that cuts every section of a family evenly."""
        found: dict[Section, int] = {}
        for key, sections in self.sections.items():
            for start, stop in sections:
                root = self.root((key, start))
                found[root] = gcd(found.get(root, 0), stop - start)
        return found

    def _pairs(self) -> list[tuple[Section, Section, bool]]:
        """Return families of queries and of their keys, and whether there are several keys."""
        return [
            (self.root((queries, 0)), self.root((keys, 0)), self.families.lengths[keys] > 1)
            for queries, keys in self.families.heads
        ]

    def _settle_whole(self) -> None:
        """Leave families uncut that have one unit, and queries and keys that do not go together."""
        self.whole |= {root for root, count in self.units.items() if count == 1}
        for pair in self.families.heads:
            if any(len(self.sections[key]) > 1 for key in pair):
                for key in pair:
                    self._keep_whole(key, (0, self.families.lengths[key]))
        before = -1
        while before != len(self.whole):
            before = len(self.whole)
            for own, theirs, several in self._pairs():
                together = self.units[own] % self.units[theirs] == 0
                if not together or (theirs in self.whole and several):
                    self.whole.add(own)
                if own in self.whole:
                    self.whole.add(theirs)

    def _ranges(self, ranks: int) -> dict[Section, tuple[Range, ...]]:
        """Return the ranges of each family's units; none of a family that is not cut."""
        keys_of = {own: theirs for own, theirs, _ in self._pairs()}
        cut = {root: count for root, count in self.units.items() if root not in self.whole}
        apart = {root for root, keys in keys_of.items() if keys != root}
        found = {root: divided(count, ranks) for root, count in cut.items() if root not in apart}
        for root in apart & cut.keys():
            keys = keys_of[root]
            parts = cut[root] // self.units[keys]
            found[root] = refined(found.get(keys, ((0, 1),) * ranks), parts)
        return found

    def splits(self, ranks: int) -> dict[Key, Split]:
        """Return how values are cut; a section that is not cut is on every rank."""
        ranges, found = self._ranges(ranks), dict[Key, Split]()
        for key, sections in self.sections.items():
            roots = [self.root((key, start)) for start, _ in sections]
            if not any(root in ranges for root in roots):
                continue
            cut = []
            for root, (start, stop) in zip(roots, sections, strict=True):
                own = ((0, stop - start),) * ranks
                if root in ranges:
                    own = scaled(ranges[root], self.units[root], stop - start)
                cut.append(tuple((start + first, start + last) for first, last in own))
            families = self.families
            found[key] = Split(families.axes[key], families.lengths[key], tuple(cut))
        return found
