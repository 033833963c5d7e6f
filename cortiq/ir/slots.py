"""State slots: what a sequence keeps between calls, as first-class objects of a program."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from cortiq.domains import Count, Size


@dataclass(frozen=True)
class Slot:
    """One piece of per-sequence state; subclasses define its geometry and the cost of a rewind."""

    rewind: ClassVar[str]
    """`free`: any earlier length; `retained`: as far back as rows are kept, else a replay from
    the start; `replay`: from the nearest snapshot."""

    def bytes_per_row(self) -> int:
        """Return the bytes that a position adds in the canonical layout (0 for constant slots)."""
        return 0

    def constant_bytes(self) -> int:
        """Return the bytes in the canonical layout that do not depend on the length."""
        return 0


@dataclass(frozen=True)
class KVRows(Slot):
    """Quantised key and value rows, one of each per position.

    Per position and KV head: int8 planes [key_dim] and [value_dim] twice, one int8 exponent each.
    Rows behind the windows of all readers may be freed; the slot can then be rewound as far as
    `cortiq.backend.windows` allows, else from the start.
    """

    heads: Count
    key_dim: Count
    value_dim: Size
    rewind: ClassVar[str] = "free"

    def bytes_per_row(self) -> int:
        """Return the bytes of planes and exponents of one position."""
        return self.heads * (2 * (self.key_dim + self.value_dim) + 2)


@dataclass(frozen=True)
class Ring(Slot):
    """The last `length` float32 rows [width]; rows before the first position are zero."""

    width: Count
    length: Size
    rewind: ClassVar[str] = "retained"

    def constant_bytes(self) -> int:
        """Return the bytes of the rows."""
        return self.length * self.width * 4


@dataclass(frozen=True)
class Recurrent(Slot):
    """A float32 array of `shape` that every position replaces; zero before the first."""

    shape: tuple[Count, ...]
    rewind: ClassVar[str] = "replay"

    def constant_bytes(self) -> int:
        """Return the bytes of the array."""
        return prod(self.shape) * 4
