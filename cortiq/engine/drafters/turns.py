"""Several drafters for one text, in turns: `--draft mtp,dflash:PATH`.

Each has an entry or a model of its own. One that has no turn computes nothing and catches up with
the text when it has one again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cortiq.backend import Want
from cortiq.engine.drafters.batched import DraftSteps, StepwiseDrafting, draft_steps
from cortiq.engine.drafting import Draft, Drafter, Drafting, Speculation, Task
from cortiq.engine.policy.turns import TurnPolicy, TurnPolicyFactory
from cortiq.engine.session import RowResult


class TurnsDrafting(StepwiseDrafting):
    """One sequence of several drafters; its policy chooses the one in turn."""

    def __init__(
        self, names: Sequence[str], draftings: Sequence[Drafting], policy: TurnPolicy
    ) -> None:
        self.names, self.draftings, self.policy = names, draftings, policy
        wants = dict.fromkeys(want for drafting in draftings for want in drafting.wants)
        self.wants: tuple[Want, ...] = tuple(wants)

    def steps(self, ids: Sequence[int], count: int) -> DraftSteps[Draft]:
        """Draft with the drafter in turn."""
        at = self.policy.turns.at
        draft = yield from draft_steps(self.draftings[at], ids, count)
        return replace(draft, drafter=self.names[at])

    def observe(self, position: int, rows: Sequence[RowResult], ids: Sequence[int]) -> None:
        """Pass rows to the drafter in turn, and to those with wants of their own."""
        for at, drafting in enumerate(self.draftings):
            if at == self.policy.turns.at or drafting.wants:
                drafting.observe(position, rows, ids)

    def close(self) -> None:
        """Close them all."""
        for drafting in self.draftings:
            drafting.close()


@dataclass(frozen=True)
class TurnsDrafter:
    """Several drafters; a sequence's policy is a `TurnPolicy` over theirs."""

    drafters: tuple[Drafter, ...]

    @property
    def name(self) -> str:
        """All names."""
        return ",".join(drafter.name for drafter in self.drafters)

    def open(self, task: Task) -> TurnsDrafting:
        """Begin on a sequence."""
        policy = task.policy
        assert isinstance(policy, TurnPolicy)
        names = [drafter.name for drafter in self.drafters]
        return TurnsDrafting(names, [drafter.open(task) for drafter in self.drafters], policy)


def in_turns(ways: Sequence[Speculation]) -> Speculation:
    """Combine several drafters into one that takes turns; a single one is returned as it is."""
    if len(ways) == 1:
        return ways[0]
    drafter = TurnsDrafter(tuple(way.drafter for way in ways))
    return Speculation(drafter, TurnPolicyFactory([way.policy for way in ways]))
