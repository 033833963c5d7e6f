"""Scripted drafts: for tests, and for replaying a known text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cortiq.backend import Want
from cortiq.engine.drafting import Draft, Task
from cortiq.engine.session import RowResult

Script = Callable[[Sequence[int], int], Sequence[int]]
"""From the ids so far and the number wanted to the ids drafted."""


@dataclass
class ScriptedDrafting:
    """One sequence of a script."""

    script: Script
    wants: tuple[Want, ...] = ()

    def propose(self, ids: Sequence[int], count: int) -> Draft:
        """Draft what the script says, cut to `count` ids."""
        return Draft(tuple(self.script(ids, count))[:count])

    def observe(self, position: int, rows: Sequence[RowResult], ids: Sequence[int]) -> None:
        """Do nothing: scripts learn nothing."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


@dataclass(frozen=True)
class ScriptedDrafter:
    """A drafter that a function is: one that needs no state of its own may be no more than this."""

    script: Script
    name: str = "script"

    def open(self, task: Task) -> ScriptedDrafting:
        """Begin on a sequence."""
        return ScriptedDrafting(self.script)


def replayed(text: Sequence[int]) -> Script:
    """Return a script of a sequence known beforehand, prompt included: all its drafts are right."""
    return lambda ids, count: text[len(ids) : len(ids) + count]


def planted(text: Sequence[int], held: Callable[[int], int], vocabulary: int) -> Script:
    """Return a script whose draft of round i has exactly held(i) right ids.

    The first id that must not hold is the right one plus 1, modulo the vocabulary. Rounds count
    from 0; a round that wants fewer ids is right as far as it goes.
    """
    rounds = iter(range(1 << 62))

    def script(ids: Sequence[int], count: int) -> list[int]:
        draft, wrong = list(text[len(ids) : len(ids) + count]), held(next(rounds))
        if wrong < len(draft):
            draft[wrong] = (draft[wrong] + 1) % vocabulary
        return draft

    return script
