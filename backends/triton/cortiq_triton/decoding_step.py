"""A step of decoding under way: whose rows it has, and what they bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cortiq.backend import FAULT, BatchResult, Outcome, State, Status, Want
from cortiq.backend.batch import COMPLETED
from cortiq.numerics.masks import Mask
from cortiq_triton.state import TritonState
from cortiq_triton.step_answers import TOKEN, StepAnswers
from cortiq_triton.step_rows import StepRows
from cortiq_triton.under_way import Owner

NO_MASK = "a mask was not supplied before the result was asked for, or before the next batch"


@dataclass(eq=False)
class DecodingStep:
    """A step under way; `result` waits for it and for those before it.

    Attributes
    ----------
    rows : whose they are. wants : of each row.
    waiting : computes what rows ask for once it is given masks; None when that is done.
    answers : how to read the words of the `answer`. event : says when these are there.
    """

    owner: Owner
    rows: StepRows
    entry: str
    wants: Sequence[tuple[Want, ...]]
    waiting: Callable[[Sequence[Mask | None]], None] | None = None
    lost: set[TritonState] = field(default_factory=set)
    outcome: BatchResult | None = None
    drawn: Sequence[int | None] = ()
    answers: StepAnswers = field(init=False)
    answer: torch.Tensor = field(init=False)
    event: Any = None

    @property
    def states(self) -> Sequence[TritonState]:
        """Sequences with rows in it."""
        return self.rows.states

    def draws(self, row: Any) -> bool:
        """Whether a row draws an id."""
        there = type(row) is int and 0 <= row < len(self.wants)
        return there and self.rows.facts[row].drawing is not None

    def supply(self, masks: Sequence[Mask | None]) -> None:
        """Give the masks that draws wait for."""
        if self.waiting is not None:
            self.waiting(masks)
            self.waiting = None

    def result(self) -> BatchResult:
        """Return the outcomes and answers of the batch."""
        self.owner.settle(self)
        assert self.outcome is not None
        return self.outcome

    def finish(self, before: Sequence[int | None]) -> None:
        """Read the answer; `before` is what the step before drew."""
        unmasked = self.rows.late() if self.waiting is not None else []
        self.supply([None] * len(unmasked))
        self.owner.shared.wait(self.event)
        words, states = self.answer.numpy(), self.rows.states
        brought: list[Mapping[Want, Any]] = [*self.answers.read(words, self.wants)]
        outcomes: dict[State, Outcome] = dict.fromkeys(states, COMPLETED)
        drawn = zip(words[:, TOKEN].tolist(), self.rows.facts, strict=True)
        self.drawn = [token if facts.drawing is not None else None for token, facts in drawn]
        failed = dict.fromkeys(words[:, 0].nonzero()[0].tolist(), FAULT)
        failed |= dict.fromkeys(unmasked, NO_MASK)
        if self.lost:
            failed |= {at: FAULT for at, state in enumerate(states) if state in self.lost}
        for at, reason in failed.items():
            if states[at] not in self.lost:
                states[at].clear()
            outcomes[states[at]], brought[at] = Outcome(Status.FAILED, reason), {}
            self.drawn[at] = None
        if self.entry == "trunk":
            for at, source in enumerate(self.rows.sources):
                if source >= 0 and at not in failed:
                    position = self.rows.positions[at]
                    states[at].tokens[position] = before[source]  # type: ignore[assignment]
        self.outcome = BatchResult(outcomes, brought)
