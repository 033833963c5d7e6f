"""Sequences driven at random over executables, each held to what its own ids make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from graphs import CONTEXT
from hypothesis import strategies as st
from sequences import alone, completed, forward, rows, same

from cortiq.backend import Executable, State, Status
from cortiq.errors import RequestError

CALLS = ("batch", "batch", "batch", "rewind", "fork", "snapshot", "restore", "move", "decline",
         "fail")  # fmt: skip
Call = tuple[str, int, float]
"""A method of `Walk`, which sequence, and a share from 0 to 1 whose meaning is the method's."""


def calls() -> st.SearchStrategy[list[Call]]:
    """Some calls in a row."""
    one = st.tuples(st.sampled_from(CALLS), st.integers(0, 9), st.floats(0, 1))
    return st.lists(one, min_size=8, max_size=16)


@dataclass
class Followed:
    """A sequence, where it lives, the ids it was fed and what it answered."""

    home: Executable
    state: State
    path: list[int] = field(default_factory=list)
    answers: list[dict] = field(default_factory=list)


class Walk:
    """Sequences on two executables, driven at random; each must stay what its own ids make it."""

    def __init__(self, homes: Sequence[Executable], oracle: Executable, seed: int) -> None:
        self.homes, self.oracle = list(homes), oracle
        values = oracle.program.trunk.values
        self.width, self.vocabulary = values["embed"].shape[0], values["logits"].shape[0]
        self.random, self.snapshots = np.random.default_rng(seed), {}
        opened = [(home, home.open(CONTEXT)) for home in (*homes, homes[0])]
        self.sequences = [Followed(home, state) for home, state in opened]

    def take(self, calls: Sequence[Call]) -> None:
        """Make the calls one after the other, then look at every sequence."""
        for name, which, share in calls:
            getattr(self, name)(self.sequences[which % len(self.sequences)], share)
        for one in self.sequences:
            self.check(one)

    def check(self, one: Followed) -> None:
        """Compare everything a sequence answered, and what it holds, with a run of its own."""
        assert one.state.length() == len(one.path)
        assert one.state.export().tokens.tolist() == one.path
        if one.path:
            expected, left = alone(self.oracle, one.path)
            assert same(one.answers, expected)
            assert same(one.state.export(), left)

    def new(self) -> list[int]:
        size = int(self.random.choice([1, 1, 1, 5, 30, 64]))
        return self.random.integers(0, self.vocabulary, size).tolist()

    def batch(self, one: Followed, share: float) -> None:
        """Feed some of the sequences that live where this one does."""
        group = [s for s in self.sequences if s.home is one.home and (s is one or share < 0.6)]
        fed = [self.new() for _ in group]
        answers = completed(
            one.home, *(rows(s.state, new) for s, new in zip(group, fed, strict=True))
        )
        for sequence, new in zip(group, fed, strict=True):
            sequence.path += new
            sequence.answers += answers[: len(new)]
            answers = answers[len(new) :]

    def rewind(self, one: Followed, share: float) -> None:
        self.check(one)
        reached = one.state.rewind(int(share * len(one.path)))
        assert reached <= int(share * len(one.path))
        del one.path[reached:], one.answers[reached:]

    def fork(self, one: Followed, share: float) -> None:
        cut = int(share * len(one.path)) if share < 0.7 else len(one.path)
        try:
            state = one.state.fork(cut)
        except RequestError:  # an imported ring cannot go back
            return
        self.sequences.append(Followed(one.home, state, one.path[:cut], one.answers[:cut]))

    def snapshot(self, one: Followed, share: float) -> None:
        self.snapshots[id(one)] = (one.home, one.state.snapshot(), one.path[:], one.answers[:])

    def restore(self, one: Followed, share: float) -> None:
        home, snapshot, path, answers = self.snapshots.get(id(one), (None, None, [], []))
        if home is one.home:
            self.check(one)
            one.state.restore(snapshot)
            one.path, one.answers = path[:], answers[:]

    def move(self, one: Followed, share: float) -> None:
        exported = one.state.export()
        one.state.release()
        one.home = self.homes[one.home is self.homes[0]]
        one.state = one.home.import_(exported, CONTEXT)

    def fail(self, one: Followed, share: float) -> None:
        row = rows(one.state, [1])[0]
        bad = [replace(row, inputs={"embed": np.full(self.width, np.nan, np.float32)})]
        outcome = forward(one.home, bad).outcomes[one.state]
        assert outcome.status is Status.FAILED
        one.path, one.answers = [], []

    def decline(self, one: Followed, share: float) -> None:
        outcome = forward(one.home, rows(one.state, [1, self.vocabulary])).outcomes[one.state]
        assert outcome.status is Status.DECLINED
