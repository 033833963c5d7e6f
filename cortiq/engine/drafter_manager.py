"""Drafters at work on an engine's sequences: opened, asked, told, closed, and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace

from cortiq.backend import Executable
from cortiq.engine.accept import Committed
from cortiq.engine.drafters.batched import draft_steps, run_batched
from cortiq.engine.drafting import NOTHING, Draft, FixedDepth, Round, Task
from cortiq.engine.in_flight import InFlightBatch, RowResult, ScheduledRows
from cortiq.engine.request import vocabulary_size
from cortiq.engine.sequence import Sequence


class DrafterManager:
    """Calls drafters; what one of them raises ends its drafting and nothing else."""

    def __init__(self, executable: Executable, clock: Callable[[], float]) -> None:
        self.executable, self.clock = executable, clock
        self._vocabulary = vocabulary_size(executable.program)

    def open(self, sequence: Sequence) -> None:
        """Begin on a sequence that has a place."""
        chosen = sequence.speculation
        if chosen is None or sequence.drafting or sequence.stats.drafts.error:
            return
        request = sequence.request
        try:
            policy = chosen.policy(len(request.prompt))
            task = Task(
                request.prompt,
                request.limit,
                request.want_at,
                self.executable,
                sequence.held_state,
                policy,
            )
            opened = chosen.drafter.open(task)
            opened.wants, opened.propose, opened.observe, opened.close  # noqa: B018 raises if not
            sequence.drafting, sequence.policy = opened, policy
        except Exception as error:
            self._give_up(sequence, error)

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[Draft, float]]:
        """For each sequence a draft of at most so many ids of the vocabulary, and its share of the
        seconds that all of them took.
        """
        started = self.clock()
        going = [draft_steps(s.drafting, s.ids, n) for s, n in depths.items() if s.drafting]
        pairs = zip(depths.items(), run_batched(going), strict=True)
        drafts = {s: self._sound(s, made, depth) for (s, depth), made in pairs}
        share = (self.clock() - started) / max(1, len(drafts))
        return {sequence: (draft, share) for sequence, draft in drafts.items()}

    def _sound(self, sequence: Sequence, draft: Draft | Exception, depth: int) -> Draft:
        """What can be used of a draft: ids of the vocabulary, at most `depth`."""
        try:
            if isinstance(draft, Exception):
                raise draft
            ids = [int(token) for token in draft.ids[:depth]]
            sound = next((i for i, t in enumerate(ids) if not 0 <= t < self._vocabulary), len(ids))
            return replace(draft.cut(sound), ids=tuple(ids[:sound]))
        except Exception as error:
            self._give_up(sequence, error)
            return NOTHING

    def observe(self, part: ScheduledRows, rows: Several[RowResult]) -> None:
        """Tell a sequence's drafter which rows of a batch were kept."""
        sequence = part.sequence
        if sequence.drafting is None:
            return
        kept = max(0, min(sequence.fed, part.stop) - part.start)
        try:
            mine = rows[part.first : part.first + kept]
            sequence.drafting.observe(part.start, mine, sequence.ids)
        except Exception as error:
            self._give_up(sequence, error)

    def _give_up(self, sequence: Sequence, error: Exception) -> None:
        """Use a drafter that failed no further; the text goes on, and its statistics say so.

        A draft head shares the sequence: where its fault cleared that, its rows are fed again.
        """
        if sequence.state is not None:
            sequence.fed = min(sequence.fed, sequence.state.length())
        sequence.stats.drafts.error = f"{type(error).__name__}: {error}"
        sequence.policy = FixedDepth(0)
        self.close(sequence)

    def close(self, sequence: Sequence) -> None:
        """Let a sequence's drafter go."""
        drafting, sequence.drafting = sequence.drafting, None
        if drafting is not None:
            try:
                drafting.close()
            except Exception as error:
                sequence.stats.drafts.error = f"{type(error).__name__}: {error}"


def record_round(step: InFlightBatch, part: ScheduledRows, got: Committed, wall: float) -> None:
    """Note a step of a sequence that committed tokens: in its statistics, for its policy."""
    sequence = part.sequence
    round_ = Round(
        generated=sequence.generated - got.emitted,
        position=len(sequence.ids) - got.emitted,
        room=sequence.room + got.emitted,
        asked=part.asked,
        proposed=len(part.draft.ids),
        extended=part.draft.extended,
        accepted=got.accepted,
        emitted=got.emitted,
        draft_seconds=part.draft_seconds,
        wall_seconds=wall,
        rows=len(step.rows),
        sequences=len(step.parts),
        drafter=part.drafter,
    )
    sequence.stats.drafts.add(round_)
    if sequence.policy is not None:
        sequence.policy.record(round_)
    if sequence.rounds is not None:
        sequence.rounds.append(round_)
