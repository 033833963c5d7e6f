"""Attention windows: the rows of a sequence that nobody sees any more.

A backend that gives them up says so by `BaseExecutable.trims`. What is there is then a function of
how long a sequence ever was, the same on every backend: rows from `kept_from` on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cortiq.ir import Graph, KVRows, Program, primitives_of
from cortiq.numerics.contract import TILE

ROLLBACK_ROWS = 64
"""Rows that a sequence with windows can certainly go back from the longest it was."""
PIECE_ROWS = 256
"""Rows of a sequence that are computed at a time where rows behind windows are given up."""


def windows_of(program: Program) -> dict[str, int]:
    """Return the widest window of the readers of each slot of key and value rows.

    Left out are slots that somebody sees whole, or that another entry graph than the writing one
    reads: it may be at any length.
    """
    found: dict[str, int] = {}
    whole: set[str] = set()
    for graph in primitives_of(program).graphs.values():
        written = set(graph.written_slots())
        for slot, window in _views(graph, program):
            if window is None or slot not in written:
                whole.add(slot)
            else:
                found[slot] = max(window, found.get(slot, 0))
    return {slot: window for slot, window in found.items() if slot not in whole}


def _views(graph: Graph, program: Program) -> list[tuple[str, int | None]]:
    """Yield the slots of rows that nodes read, each with the window it is read through."""
    readers: list[Any] = [n for n in graph.nodes if not n.op.writes_slots]
    return [
        (slot, None if getattr(node.op, "until", False) else getattr(node.op, "window", None))
        for node in readers
        for slot in node.slots.values()
        if isinstance(program.slots[slot], KVRows)
    ]


def kept_from(length: int, window: int | None) -> int:
    """Return the first row kept of a sequence that was `length` rows long, and never longer.

    Whole tiles are given up, and `ROLLBACK_ROWS` are kept beyond what the next row looks at.
    """
    if window is None:
        return 0
    return max(0, length - ROLLBACK_ROWS - window + 1) // TILE * TILE


def first_seen(length: int, window: int | None) -> int:
    """Return the first row that the row at position `length` looks at."""
    return 0 if window is None else max(0, length - window + 1)


def most_rows(window: int, piece: int = PIECE_ROWS) -> int:
    """Return the most rows of a windowed slot kept at once, a piece of so many rows included."""
    return window - 1 + ROLLBACK_ROWS + (TILE - 1) + piece


def goes_back(executable: Any) -> bool:
    """Check whether sequences can rewind to any length: they have rows only, and keep all."""
    program: Program = executable.program
    slots = [program.slots[name] for name in program.trunk.written_slots()]
    kept = not executable.windows
    return kept and all(isinstance(slot, KVRows) for slot in slots)


@dataclass
class Extent:
    """The rows of a slot of key and value rows that are kept: `base` … `length` − 1.

    Attributes
    ----------
    window : what the slot is seen through, None for whole.
    trims : whether rows behind the window are given up.
    """

    window: int | None = None
    trims: bool = False
    base: int = 0
    length: int = 0

    def room(self, rows: int) -> int:
        """Return the rows that memory is needed for, in a sequence of so many."""
        return min(rows, most_rows(self.window)) if self.trims and self.window else rows

    def written(self, length: int) -> None:
        """Count the rows up to so many as written, and give up those behind the window."""
        self.length = length
        self.trim()

    def begin(self, length: int, base: int = 0) -> None:
        """Begin at what was imported of a sequence of this many rows: those from `base` on."""
        self.length, self.base = length, base
        self.trim()

    def trim(self) -> int:
        """Free the rows behind the window, after a batch; return their number."""
        before = self.base
        if self.trims:
            self.base = max(before, kept_from(self.length, self.window))
        return self.base - before

    def reaches(self, length: int) -> bool:
        """Check whether all rows are kept that the row at position `length` sees."""
        return length >= self.length or first_seen(length, self.window) >= self.base

    def rewind(self, length: int) -> int:
        """Forget the rows from `length` on; all, where a row that the next one sees is not kept."""
        if not self.reaches(length):
            length = self.base = 0
        self.length = min(self.length, length)
        return self.length
