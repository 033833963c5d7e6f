"""Places of a step's values in a block of memory: given away once a value is read the last time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cortiq.backend.lower import LoweredStep


@dataclass
class FreeSpans:
    """Free stretches (start, size), in ascending order, with neighbours joined."""

    stretches: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0

    def take(self, size: int) -> int:
        """Take the first large enough stretch, or new memory at the end; return its start."""
        for index, (start, room) in enumerate(self.stretches):
            if room >= size:
                rest = [(start + size, room - size)] if room > size else []
                self.stretches[index : index + 1] = rest
                return start
        start, self.end = self.end, self.end + size
        return start

    def give(self, start: int, size: int) -> None:
        """Take back a stretch."""
        joined: list[tuple[int, int]] = []
        for place, room in sorted([*self.stretches, (start, size)]):
            if joined and sum(joined[-1]) == place:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((place, room))
        self.stretches = joined


def place(
    groups: Sequence[Sequence[LoweredStep]],
    root: Callable[[str], str],
    sizes: Mapping[str, int],
    kept: Iterable[str],
    first: Iterable[str],
    block_of: Callable[[str], FreeSpans],
    replaced: Callable[[LoweredStep, set[str]], str | None] = lambda step, read: None,
) -> dict[str, int]:
    """Assign every value of the steps a place in its block.

    Parameters
    ----------
    groups : steps in order; those of one group run interleaved, so that a place is not given away
        inside it.
    root : the value whose memory holds a value.
    sizes : of each value that has a place.
    kept : values whose places are never given away. first : those that exist before any step.
    replaced : of a step and the values it reads for the last time, the one whose place its output
        takes.
    """
    touched: list[list[str]] = []
    last: dict[str, int] = {}
    for index, group in enumerate(groups):
        roots = dict.fromkeys(root(n) for step in group for n in (*step.inputs, *step.outputs))
        touched.append([name for name in roots if name in sizes])
        last.update(dict.fromkeys(touched[-1], index))
    staying = {root(name) for name in kept}
    offsets = {name: block_of(name).take(sizes[name]) for name in first}
    for index, (group, names) in enumerate(zip(groups, touched, strict=True)):
        ending = {n for n in names if last[n] == index and n not in staying}
        if len(group) == 1:
            taken = replaced(group[0], {name for name in ending if name in offsets})
            if taken is not None:
                offsets[root(group[0].outputs[0])] = offsets[taken]
                ending.discard(taken)  # its place is the output's to give away
        for name in names:
            if name not in offsets:
                offsets[name] = block_of(name).take(sizes[name])
        for name in names:
            if name in ending:
                block_of(name).give(offsets[name], sizes[name])
    return offsets
