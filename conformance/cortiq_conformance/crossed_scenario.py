"""Requests that attend to rows of an encoder: these are stored first, of all in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cortiq.backend import Batch, Executable, Row, State, Want
from cortiq.ir.encoded import most_rows
from cortiq_conformance import outputs
from cortiq_conformance.case import Scenario
from cortiq_conformance.drives import (
    STATUS_CODES,
    BatchedDrive,
    ProgramUnderTest,
    SequenceInput,
    SequenceOutcome,
    rows_of,
)
from cortiq_conformance.oracle import OracleSequence
from cortiq_conformance.outputs import Observations


@dataclass(frozen=True)
class CrossedDrive:
    """All requests in the same batches, after a batch of what each of them attends to.

    Attributes
    ----------
    sounds : rows of the encoder of each request. step : own rows at a time; 0 for all of them.
    """

    sounds: Sequence[SequenceInput]
    step: int = 0

    def run(
        self, bench: ProgramUnderTest, feeds: Sequence[SequenceInput], wants: Sequence[Want]
    ) -> list[SequenceOutcome]:
        """Store the encoders' rows, and run batches until the longest request has ended."""
        with bench.compiled() as executable:
            states = [executable.open(most_rows(bench.program)) for _ in feeds]
            answers = self._store(executable, states)
            BatchedDrive(self.step).advance_all(executable, states, feeds, wants, answers)
            for state in states:
                state.release()
        return answers

    def _store(self, executable: Executable, states: Sequence[State]) -> list[SequenceOutcome]:
        rows: list[Row] = []
        for state, sound in zip(states, self.sounds, strict=True):
            rows += rows_of(state, sound, 0, len(sound), ())
        result = executable.forward(Batch(rows, self.sounds[0].entry)).result()
        kept = {state: STATUS_CODES[outcome.status] for state, outcome in result.outcomes.items()}
        return [SequenceOutcome(status=kept.get(state, 0)) for state in states]


@dataclass(frozen=True)
class CrossedScenario(Scenario):
    """A scenario of requests that attend to rows of an encoder, with a `CrossedDrive`."""

    @property
    def sounds(self) -> Sequence[SequenceInput]:
        """Rows of the encoder of each request."""
        assert isinstance(self.drive, CrossedDrive)
        return self.drive.sounds

    def _expected(self, feed: SequenceInput) -> tuple[int, Observations]:
        """Evaluate one request after its encoder's rows."""
        oracle = OracleSequence(self.program, self.weights)
        (sound,) = (s for s, own in zip(self.sounds, self.feeds, strict=True) if own is feed)
        if len(sound.tokens):
            oracle.feed(sound.tokens, sound.inputs, sound.entry)
        evaluation = oracle.feed(feed.tokens, feed.inputs)
        return 0, outputs.expected(self.wants, evaluation, feed.tokens.tolist())

    def inputs(self) -> Observations:
        """Return the requests' rows, and those of their encoders."""
        found = super().inputs()
        for index, sound in enumerate(self.sounds):
            for name, array in sound.inputs.items():
                found[f"sequence {index}: {name}"] = np.asarray(array)
        return found
