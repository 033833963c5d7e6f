"""N-gram index: finds where the end of a sequence occurred before, for prompt lookup.

`tail_repeat` and `lookup_continuation` are the definition, by a scan; `NgramIndex` gives the same
answers without one, and follows a sequence that grows and is rewound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cortiq.engine.radix_tree import common_prefix_length

LONGEST = 32
"""Ids at which a match counts as long as any."""
GRAM = 3
"""Ids of an n-gram in the index: shorter matches are coincidences."""
CHAIN = 64
"""Positions looked at, latest first; a phrase that occurs more often is found in these."""


class NgramMatch(NamedTuple):
    """The longest earlier occurrence of a sequence's end, the latest among equals.

    Attributes
    ----------
    length : ids that agree, at most `LONGEST`; 0 when there is none.
    after : index of the id that came next there.
    """

    length: int = 0
    after: int = 0


NO_MATCH = NgramMatch()


def common_suffix(ids: Sequence[int], end: int) -> int:
    """Return how many ids at the end of ids[: end] are the last of `ids` too, at most `LONGEST`."""
    last, most = len(ids), min(LONGEST, end)
    length = 0
    while length < most and ids[end - 1 - length] == ids[last - 1 - length]:
        length += 1
    return length


def longest_match(ids: Sequence[int], ends: Iterable[int]) -> NgramMatch:
    """Return the longest match that ends before one of these positions, given latest first."""
    best = NO_MATCH
    for end in ends:
        length = common_suffix(ids, end)
        if length > best.length:
            best = NgramMatch(length, end)
        if length == LONGEST:
            break
    return best


def tail_repeat(ids: Sequence[int]) -> int:
    """Return how many of the last ids occur together before: the length of a copy."""
    return longest_match(ids, range(len(ids) - 1, 0, -1)).length


def lookup_continuation(ids: Sequence[int], least: int, count: int) -> Sequence[int]:
    """Return what followed the longest earlier match of the end: at most `count` ids.

    Parameters
    ----------
    least : ids that must agree.
    """
    if count <= 0 or least <= 0:
        return []
    return _continuation(ids, longest_match(ids, range(len(ids) - 1, 0, -1)), least, count)


def _continuation(ids: Sequence[int], match: NgramMatch, least: int, count: int) -> Sequence[int]:
    return ids[match.after : match.after + count] if match.length >= least else []


class NgramIndex:
    """Index of the positions of every `GRAM` ids of a sequence, as chains from the latest back.

    Adding an id and taking it away again are O(1); a search looks at `CHAIN` positions at most.
    It holds one number and at most one entry of a table for every id.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []

    def extend(self, ids: Iterable[int]) -> None:
        """Add ids at the end."""
        for token in ids:
            self.ids.append(token)
            gram = tuple(self.ids[-GRAM:])
            self._before.append(self._latest.get(gram, 0))
            self._latest[gram] = len(self.ids)

    def truncate(self, length: int) -> None:
        """Forget the ids from `length` on."""
        while len(self.ids) > length:
            gram, before = tuple(self.ids[-GRAM:]), self._before.pop()
            if before:
                self._latest[gram] = before
            else:
                del self._latest[gram]
            self.ids.pop()

    def follow(self, ids: Sequence[int]) -> None:
        """Update the index to `ids`, which mostly extend those it has.

        Only the last id is compared before the longer way is gone: drafts from a wrong past would
        cost time, never a token.
        """
        known = len(self.ids)
        if known > len(ids) or (known and ids[known - 1] != self.ids[-1]):
            self.truncate(common_prefix_length(self.ids, ids))
        self.extend(ids[len(self.ids) :])

    def match(self) -> NgramMatch:
        """Return the longest earlier match of the end, `NO_MATCH` if it is shorter than `GRAM`."""
        found = longest_match(self.ids, self._positions())
        return found if found.length >= GRAM else NO_MATCH

    def _positions(self) -> Iterable[int]:
        at = self._before[-1] if self._before else 0
        for _ in range(CHAIN):
            if not at:
                return
            yield at
            at = self._before[at - 1]

    def continuation(self, match: NgramMatch, count: int) -> tuple[int, ...]:
        """Return the `count` ids after a match; past the end the copy repeats itself."""
        copied: list[int] = []
        for at in range(match.after, match.after + count if match.length else 0):
            known = at < len(self.ids)
            copied.append(self.ids[at] if known else copied[at - len(self.ids)])
        return tuple(copied)
