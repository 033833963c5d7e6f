"""Places of a request's values in two blocks of memory: numbers, and quantised rows.

A value's place is given away once it has been read for the last time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from cortiq.backend.stretches import Free
from cortiq.ir import Type
from cortiq_wgpu.lower import Lowered

LINE = 16
"""Places begin at multiples of so many words."""
GROUP = 32
TAIL_WORDS = 4
"""A record ends with its exponent, alone in four words."""


def units_of(width: int) -> int:
    """Stretches of 16 values of a quantised row, padded to whole groups of 32."""
    return -(-width // GROUP) * 2


def record_words(width: int) -> int:
    """Words of a quantised row: two planes, sums of 16, the exponent."""
    units = units_of(width)
    return 8 * units + -(-units // 4) * 4 + TAIL_WORDS


def row_words(type_: Type) -> int:
    """Words of a row's value."""
    if type_.dtype == "q16":
        return prod(type_.shape[:-1]) * record_words(type_.shape[-1])
    return prod(type_.shape)


@dataclass(frozen=True)
class Places:
    """Where values begin, in words of their block, and how large both blocks are."""

    offsets: dict[str, int]
    numbers: int
    records: int


def assign(lowered: Lowered, rows: dict[str, int], kept: set[str]) -> Places:
    """Give every value a place.

    Parameters
    ----------
    rows : rows of each value that has one. kept : values that are never given away.
    """
    last: dict[str, int] = {}
    for index, group in enumerate(lowered.groups):
        for step in group:
            for name in (*step.inputs, *step.outputs):
                last[lowered.root(name)] = index
    blocks = {False: Free(), True: Free()}
    offsets: dict[str, int] = {}
    roots = {lowered.root(name) for name in kept}

    def size_of(name: str) -> tuple[Free, int]:
        type_ = lowered.types[name]
        words = max(1, rows[name] * row_words(type_))
        return blocks[type_.dtype == "q16"], -(-words // LINE) * LINE

    for name in sorted(roots & rows.keys()):
        block, size = size_of(name)
        offsets[name] = block.take(size)
    for index, group in enumerate(lowered.groups):
        touched = [lowered.root(n) for step in group for n in (*step.inputs, *step.outputs)]
        touched = [name for name in dict.fromkeys(touched) if name in rows]
        for name in touched:
            if name not in offsets:
                block, size = size_of(name)
                offsets[name] = block.take(size)
        for name in touched:
            if last[name] == index and name not in roots:
                block, size = size_of(name)
                block.give(offsets[name], size)
    return Places(offsets, blocks[False].end, blocks[True].end)
