"""A sequence of a program that the ranks of a stage hold in shares."""

from __future__ import annotations

import weakref
from typing import Any

from cortiq.backend import ExportedState
from cortiq.ranks.driver import Driver
from cortiq.ranks.shared_state import put_together


class StageSnapshot:
    """A copy of a sequence on every rank; ranks forget it once nobody holds this."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.number = number
        weakref.finalize(self, driver.drop_later, number)


class StageState:
    """One sequence, of which every rank holds its share; see `cortiq.backend.State`.

    Attributes
    ----------
    owner : its executable. number : what ranks know it by. lengths : rows seen, by entry graph.
    """

    def __init__(self, owner: Any, number: int, limit: int, lengths: dict[str, int]) -> None:
        self.owner, self.number, self.limit, self.lengths = owner, number, limit, lengths
        self.alive = True

    def length(self, entry: str = "trunk") -> int:
        """Return the rows that an entry graph has seen."""
        return self.lengths[entry]

    def clear(self) -> None:
        """Count no rows any more: the ranks that had them are gone."""
        self.lengths = dict.fromkeys(self.lengths, 0)

    def reserve(self, rows: int) -> bool:
        """Make room on every rank; room that some found stays theirs."""
        return all(self.owner.ask(("reserve", self.number, rows)))

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget rows on every rank."""
        answers = self.owner.ask(("rewind", self.owner.number, self.number, length, entry))
        reached, self.lengths = answers[0]
        return reached

    def snapshot(self) -> StageSnapshot:
        """Copy what the sequence holds, on every rank."""
        number = next(self.owner.driver.numbers)
        self.owner.ask(("snapshot", self.number, number))
        return StageSnapshot(self.owner.driver, number)

    def restore(self, snapshot: StageSnapshot) -> None:
        """Restore the sequence on every rank."""
        command = ("restore", self.owner.number, self.number, snapshot.number)
        self.lengths = self.owner.ask(command)[0]

    def fork(self, length: int | None = None) -> StageState:
        """Open a sequence that starts as this one."""
        number = next(self.owner.driver.numbers)
        command = ("fork", self.owner.number, self.number, number, length)
        return StageState(self.owner, number, self.limit, self.owner.ask(command)[0])

    def export(self) -> ExportedState:
        """Return the whole sequence, put together from the ranks' shares."""
        return put_together(self.owner.ask(("export", self.number)), self.owner.splits)

    def release(self) -> None:
        """Give the memory back on every rank."""
        if self.alive:
            self.owner.tell_living(("release", self.number))
        self.alive = False
