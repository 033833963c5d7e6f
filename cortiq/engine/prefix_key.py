"""The key of a prefix in constant size: for models whose state does not grow with the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

START = 0xCBF29CE484222325
PRIME = 0x100000001B3
MASK = (1 << 64) - 1
TAIL = 128
"""Last ids that are kept as they are: a hash alone is never believed."""


def fold(ids: Sequence[int], start: int = START) -> int:
    """Return the hash: for each id h = (h xor id)·PRIME mod 2⁶⁴, then h = h xor (h >> 29)."""
    h = start
    for token in ids:
        h = ((h ^ token) * PRIME) & MASK
        h ^= h >> 29
    return h


@dataclass(frozen=True)
class RollingKey:
    """Length, hash and last ids of a prefix.

    Attributes
    ----------
    tail : the last `TAIL` ids, or all there are.
    """

    length: int = 0
    hash: int = START
    tail: tuple[int, ...] = ()

    @classmethod
    def of(cls, ids: Sequence[int]) -> RollingKey:
        """Return the key of these ids."""
        return cls().extended(ids)

    def extended(self, more: Sequence[int]) -> RollingKey:
        """Return the key after more ids."""
        tail = (*self.tail, *more)[-TAIL:]
        return replace(self, length=self.length + len(more), hash=fold(more, self.hash), tail=tail)

    def extension(self, ids: Sequence[int]) -> int:
        """Return its length if it is the beginning, and not all, of these ids; else 0.

        The tail is compared first, then the hash of the whole prefix.
        """
        if not 0 < self.length < len(ids):
            return 0
        start = self.length - len(self.tail)
        if tuple(ids[start : self.length]) != self.tail:
            return 0
        return self.length if fold(ids[: self.length]) == self.hash else 0
