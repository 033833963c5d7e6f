"""Which stretches of a block of memory are free, for backends that lay out a step's values once."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Free:
    """Free stretches (start, size), in ascending order, with neighbours joined."""

    stretches: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0

    def take(self, size: int) -> int:
        """The start of the first stretch that is large enough, or new memory at the end."""
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
