"""Opens, calls and closes the drafters of an engine's sequences, and records their rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace

from cortiq.backend import Executable
from cortiq.engine.accept import Committed
from cortiq.engine.drafters.batched import draft_steps, run_batched
from cortiq.engine.drafting import NOTHING, Draft, FixedDepth, Round, Task
from cortiq.engine.in_flight import InFlightBatch, ScheduledRows
from cortiq.engine.request import vocabulary_size
from cortiq.engine.sequence import Sequence
from cortiq.engine.session import RowResult


class DrafterManager:
    """Calls drafters; an exception in one of them ends its drafting and nothing else."""

    def __init__(self, executable: Executable, clock: Callable[[], float]) -> None:
        self.executable, self.clock = executable, clock
        self._vocabulary = vocabulary_size(executable.program)

    def open(self, sequence: Sequence) -> None:
        """Open the drafter of a sequence that was admitted."""
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
                sequence.live_state,
                policy,
            )
            opened = chosen.drafter.open(task)
            opened.wants, opened.propose, opened.observe, opened.close  # noqa: B018 raises if not
            sequence.drafting, sequence.policy = opened, policy
        except Exception as error:
            self._stop_drafting(sequence, error)

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[Draft, float]]:
        """Return for each sequence a draft of at most so many ids, and its share of the seconds."""
        started = self.clock()
        going = [draft_steps(s.drafting, s.ids, n) for s, n in depths.items() if s.drafting]
        pairs = zip(depths.items(), run_batched(going), strict=True)
        drafts = {s: self._usable(s, made, depth) for (s, depth), made in pairs}
        share = (self.clock() - started) / max(1, len(drafts))
        return {sequence: (draft, share) for sequence, draft in drafts.items()}

    def _usable(self, sequence: Sequence, draft: Draft | Exception, depth: int) -> Draft:
        """Return the usable beginning of a draft: ids of the vocabulary, at most `depth`."""
        try:
            if isinstance(draft, Exception):
                raise draft
            ids = [int(token) for token in draft.ids[:depth]]
            sound = next((i for i, t in enumerate(ids) if not 0 <= t < self._vocabulary), len(ids))
            return replace(draft.cut(sound), ids=tuple(ids[:sound]))
        except Exception as error:
            self._stop_drafting(sequence, error)
            return NOTHING

    def observe(self, scheduled: ScheduledRows, rows: Several[RowResult]) -> None:
        """Pass the kept rows of a batch to the sequence's drafter."""
        sequence = scheduled.sequence
        if sequence.drafting is None:
            return
        kept = max(0, min(sequence.fed, scheduled.stop) - scheduled.start)
        try:
            mine = rows[scheduled.first : scheduled.first + kept]
            sequence.drafting.observe(scheduled.start, mine, sequence.ids)
        except Exception as error:
            self._stop_drafting(sequence, error)

    def _stop_drafting(self, sequence: Sequence, error: Exception) -> None:
        """Close a drafter that failed, and note the error; generation continues without it.

        A draft head shares the sequence: where its fault cleared it, the rows are fed again.
        """
        if sequence.state is not None:
            sequence.fed = min(sequence.fed, sequence.state.length())
        sequence.stats.drafts.error = f"{type(error).__name__}: {error}"
        sequence.policy = FixedDepth(0)
        self.close(sequence)

    def close(self, sequence: Sequence) -> None:
        """Close the drafter of a sequence."""
        drafting, sequence.drafting = sequence.drafting, None
        if drafting is not None:
            try:
                drafting.close()
            except Exception as error:
                sequence.stats.drafts.error = f"{type(error).__name__}: {error}"


def record_round(
    batch: InFlightBatch, scheduled: ScheduledRows, got: Committed, wall: float
) -> None:
    """Record a round that committed tokens: in the statistics and for the policy."""
    sequence = scheduled.sequence
    if sequence.policy is None and sequence.rounds is None and not scheduled.draft.ids:
        sequence.stats.drafts.plain_rounds += 1
        return
    round_ = Round(
        generated=sequence.generated - got.emitted,
        position=len(sequence.ids) - got.emitted,
        room=sequence.room + got.emitted,
        asked=scheduled.asked,
        proposed=len(scheduled.draft.ids),
        extended=scheduled.draft.extended,
        accepted=got.accepted,
        emitted=got.emitted,
        draft_seconds=scheduled.draft_seconds,
        wall_seconds=wall,
        rows=len(batch.rows),
        sequences=len(batch.scheduled),
        drafter=scheduled.drafter,
    )
    sequence.stats.drafts.add(round_)
    if sequence.policy is not None:
        sequence.policy.record(round_)
    if sequence.rounds is not None:
        sequence.rounds.append(round_)
