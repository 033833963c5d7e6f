"""The generation engine: admits sequences, batches their rows, commits tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from cortiq.arguments import instance_of
from cortiq.backend import Batch, BatchResult, Executable, Ticket
from cortiq.backend.error_attribution import attributed_to
from cortiq.engine.accept import NO_TOKEN, Committed, commit_rows
from cortiq.engine.cache_roles import CacheRole
from cortiq.engine.default_cache_points import with_cache_points
from cortiq.engine.drafter_manager import DrafterManager, record_round
from cortiq.engine.drafting import Speculation
from cortiq.engine.in_flight import InFlightBatch, ScheduledRows, schedule_batch
from cortiq.engine.output import Output
from cortiq.engine.pace import Pace
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.request import Request, checked_request, vocabulary_size
from cortiq.engine.schedule_ahead import MaskThread, note_wait, runs_ahead
from cortiq.engine.scheduler import DEFAULT_OPTIONS, AdmissionError, EngineOptions, Scheduler
from cortiq.engine.sequence import Progress, Sequence
from cortiq.engine.state_manager import StateManager
from cortiq.engine.statistics import Statistics
from cortiq.ir import Recurrent
from cortiq.tokenizer.tokenizer import Tokenizer


class Engine:
    """Serves many sequences on one executable, a batch for each call of `step`.

    It belongs to one thread; only `Sequence.cancel` may be called from others.

    Parameters
    ----------
    prefixes : cache of finished sequences for later prompts, owned by the caller; None for none.
    speculation : drafting of sequences that are submitted without their own.
    clock : seconds; policies learn from it.
    """

    def __init__(
        self,
        executable: Executable,
        tokenizer: Tokenizer,
        *,
        options: EngineOptions = DEFAULT_OPTIONS,
        prefixes: PrefixCache | None = None,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        instance_of(options, EngineOptions, "options")
        self.executable, self.tokenizer = executable, tokenizer
        self.limits = options.limits(executable.batch_rows)
        self.prefixes, self.speculation, self.clock = prefixes, speculation, clock
        self.steps, self._numbers, self._finished = 0, 0, 0.0
        self._states = StateManager(executable, prefixes)
        self._scheduler = Scheduler(self._states, self.limits)
        self._pace = Pace(self.limits.mixed_seconds, self.limits.batch_rows)
        self._in_flight: InFlightBatch | None = None
        self._vocabulary = vocabulary_size(executable.program)
        self._drafters, self._masks = DrafterManager(executable, clock), MaskThread()
        slots = [executable.program.slots[n] for n in executable.program.trunk.written_slots()]
        self._costly = any(isinstance(slot, Recurrent) for slot in slots)

    def submit(
        self,
        request: Request,
        *,
        priority: int = 0,
        stats: Statistics | None = None,
        speculation: Speculation | None = None,
        progress: Progress | None = None,
        record: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Sequence:
        """Queue a request; nothing is computed before `step`.

        Parameters
        ----------
        priority : each point ages the request by `PATIENCE` steps.
        record : keep every step in `Sequence.rounds`.
        cancelled : called before every step.

        Raises
        ------
        RequestError : no request, too many are waiting, or embeddings do not fit the prompt.
        """
        request = checked_request(request, self.executable.program)
        request = with_cache_points(request, self.prefixes, self.tokenizer)
        sequence = Sequence(
            request,
            Output(request, self.tokenizer),
            stats or Statistics(prompt_tokens=len(request.prompt)),
            self._numbers,
            priority,
            self.steps,
            speculation or self.speculation,
            progress,
            [] if record else None,
            cancelled=cancelled,
        )
        self._scheduler.add(sequence)
        self._numbers += 1
        return sequence

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences without a state yet."""
        return self._scheduler.waiting

    @property
    def running(self) -> list[Sequence]:
        """Sequences that have a state."""
        return self._scheduler.running

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self.running or self._in_flight)

    def run(self) -> None:
        """Step until idle."""
        while self.step():
            pass

    def step(self) -> bool:
        """Compute one batch and commit it; return whether there is more to do.

        On an asynchronous executable the next batch is submitted before this one is read.
        """
        try:
            self._end_cancelled()
            self._admit()
            batch = self._in_flight or self._submit(None)
            self._in_flight = None
            if batch is not None:
                self.steps += 1
                if runs_ahead(self.executable, self.running):
                    self._in_flight = self._submit(batch)
                self._postprocess(batch)
                self._supply_masks()
        except BaseException as error:
            self._abort(error)
            raise
        return not self.idle

    def _end_cancelled(self) -> None:
        for sequence in [*self.waiting, *self.running]:
            if sequence.is_cancelled:
                sequence.output.finish("cancelled")
                self._end(sequence)

    def _admit(self) -> None:
        """Move waiting sequences to the running queue while there is memory for their states."""
        self._scheduler.leaving = None
        while True:
            try:
                sequence = self._scheduler.admit_next(self._is_in_flight)
            except AdmissionError as refused:
                self._end(refused.sequence, refused.error)
                continue
            if sequence is None:
                return
            self._drafters.open(sequence)

    def preempt(self, sequence: Sequence, keep: int = 0) -> None:
        """Drop a running sequence's rows from `keep` on; at 0 it returns to the waiting queue.

        One with rows in flight, or without a new token since the last time, keeps its rows.
        """
        preemptible = sequence in self.running and sequence.can_be_preempted
        if preemptible and not self._is_in_flight(sequence):
            self._scheduler.preempt(sequence, keep)

    def _is_in_flight(self, sequence: Sequence) -> bool:
        """Return whether the batch in flight has rows of this sequence."""
        return self._in_flight is not None and self._in_flight.rows_of(sequence) is not None

    def _submit(self, before: InFlightBatch | None) -> InFlightBatch | None:
        """Schedule the next batch and hand it to the executable."""
        started = self.clock()
        going = self._scheduler.going(before is not None, self._fail)
        most, propose = self.limits.batch_rows, self._drafters.propose
        scheduled = schedule_batch(going, most, before, propose, self._pace.prompt_rows)
        if not scheduled:
            return None
        for rows in scheduled:
            rows.sequence.served = self.steps
            if self._costly and rows.draft.ids:
                rows.checkpoint = rows.state.snapshot()
        batch = InFlightBatch(scheduled, started)
        try:
            with attributed_to(self._states.backend):
                given = Batch(batch.rows)
                if batch.late and not self.executable.late_masks(given):
                    note_wait("masks", self.running)
                    return None
                batch.ticket = self.executable.forward(given)
        except Exception as error:
            self._fail_batch(batch, error)
            return None
        return batch

    def _supply_masks(self) -> None:
        """Give the batch in flight the masks that follow from what the one before it drew."""
        if (batch := self._in_flight) is None or not batch.late:
            return
        try:
            with attributed_to(self._states.backend):
                self._masks.supply(batch)
        except Exception as error:
            self._in_flight = None
            self._fail_batch(batch, error)

    def _postprocess(self, batch: InFlightBatch) -> None:
        """Wait for a batch and commit it, sequence by sequence."""
        try:
            with attributed_to(self._states.backend):
                result = cast(Ticket, batch.ticket).result()
        except Exception as error:
            self._fail_batch(batch, error)
            return
        self._masks.start(self._in_flight, batch, result.rows)
        counts = [self._commit(batch, rows, result) for rows in batch.scheduled]
        now = self.clock()
        wall, self._finished = now - max(batch.started, self._finished), now
        if len(batch.rows) >= 2 * len(batch.scheduled):  # rows of prompts, mostly
            self._pace.record(len(batch.rows), wall)
        for rows, got in zip(batch.scheduled, counts, strict=True):
            if got.emitted:
                record_round(batch, rows, got, wall)

    def _fail_batch(self, batch: InFlightBatch, error: Exception) -> None:
        """Fail every sequence of a batch that raised: their states are unknown now."""
        for rows in batch.scheduled:
            self._fail(rows.sequence, error)

    def _commit(self, batch: InFlightBatch, rows: ScheduledRows, result: BatchResult) -> Committed:
        """Commit one sequence's rows; return the numbers of its tokens."""
        try:
            got = commit_rows(batch, rows, result, self.executable, self._vocabulary)
        except Exception as error:
            self._fail(rows.sequence, error)
            return NO_TOKEN
        self._drafters.observe(rows, result.rows)
        self._continue(rows.sequence, rows)
        return got

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence with an error; ignore the error of one that had ended before."""
        if not sequence.done:
            self._end(sequence, error)
        if not self._is_in_flight(sequence):  # else once that batch was read
            self._states.free(sequence)

    def _continue(self, sequence: Sequence, rows: ScheduledRows) -> None:
        """End a sequence whose text has ended; cache its state at a cache point."""
        if sequence.done or sequence.output.finish_reason:
            self._end(sequence)
            return
        if not rows.draws:
            prompt = len(sequence.request.prompt)
            if sequence.progress and sequence.fed <= prompt:
                sequence.progress(sequence.fed, prompt)
        self._states.cache_at_points(sequence)

    def _end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        """End a sequence; cache or free its state once no batch in flight uses it."""
        sequence.done = True
        sequence.error = sequence.error or error
        self._scheduler.remove(sequence)
        self._drafters.close(sequence)
        if not self._is_in_flight(sequence):
            reason = sequence.output.finish_reason
            role = CacheRole.BRANCH if reason == "cancelled" else CacheRole.TURN
            self._states.release_to_cache(sequence, role)

    def close(self) -> None:
        """Cancel all sequences and free every state that is not cached."""
        for sequence in [*self.waiting, *self.running]:
            sequence.cancel()
        self.run()
        self._masks.close()

    def _abort(self, error: BaseException) -> None:
        """End every sequence with the error: after an interrupt or a lack of memory."""
        batch, self._in_flight = self._in_flight, None
        for sequence in [*self.waiting, *self.running]:
            self._end(sequence, error)
        for rows in batch.scheduled if batch else []:
            self._states.free(rows.sequence)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
