"""Offsets of a request's values in two blocks of memory: numbers, and quantised rows.

A value's place is given away once it has been read for the last time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from cortiq.backend.arena import FreeSpans, place
from cortiq.ir import Type
from cortiq_wgpu.step_groups import GroupedSteps

LINE = 16
"""Places begin at multiples of so many words."""
GROUP = 32
TAIL_WORDS = 4
"""A record ends with its exponent, alone in four words."""


def units_of(width: int) -> int:
    """Count a quantised row's units of 16 values, padded to whole groups of 32."""
    return -(-width // GROUP) * 2


def record_words(width: int) -> int:
    """Count the words of a quantised row: two planes, sums of 16, the exponent."""
    units = units_of(width)
    return 8 * units + -(-units // 4) * 4 + TAIL_WORDS


def row_words(type_: Type) -> int:
    """Count the words of a row's value."""
    if type_.dtype == "q16":
        return prod(type_.shape[:-1]) * record_words(type_.shape[-1])
    return prod(type_.shape)


@dataclass(frozen=True)
class BlockOffsets:
    """Offsets of values in words of their block, and the sizes of both blocks."""

    offsets: dict[str, int]
    numbers: int
    records: int


def assign(lowered: GroupedSteps, rows: dict[str, int], kept: set[str]) -> BlockOffsets:
    """Assign an offset to every value.

    Parameters
    ----------
    rows : rows of each value that has one. kept : values that are never given away.
    """
    blocks = {False: FreeSpans(), True: FreeSpans()}
    types = {name: lowered.types[name] for name in rows}
    words = {name: max(1, count * row_words(types[name])) for name, count in rows.items()}
    sizes = {name: -(-size // LINE) * LINE for name, size in words.items()}
    first = sorted({lowered.root(name) for name in kept} & rows.keys())
    offsets = place(
        lowered.groups,
        lowered.root,
        sizes,
        kept,
        first,
        lambda name: blocks[types[name].dtype == "q16"],
    )
    return BlockOffsets(offsets, blocks[False].end, blocks[True].end)
