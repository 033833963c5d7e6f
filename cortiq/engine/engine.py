"""The engine: sequences admitted, batched, advanced and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from cortiq.backend import BatchResult, Executable, Status
from cortiq.backend.batch import Batch
from cortiq.engine.accept import NO_TOKEN, Committed, commit, settle
from cortiq.engine.assistants import Drafters, record
from cortiq.engine.batch import Part, Step, plan_parts
from cortiq.engine.drafting import Speculation
from cortiq.engine.line import DEFAULTS, EngineOptions, Line, Refusal
from cortiq.engine.marks import with_marks
from cortiq.engine.output import Output
from cortiq.engine.places import Places
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.roles import Role
from cortiq.engine.sequence import Progress, Sequence
from cortiq.errors import BackendError
from cortiq.ir import Recurrent
from cortiq.runtime.blame import blamed_on, failure_hint
from cortiq.runtime.request import Request, checked_request, vocabulary_size
from cortiq.runtime.sequence import check_outcome
from cortiq.runtime.statistics import Statistics
from cortiq.tokenizer.tokenizer import Tokenizer


class Engine:
    """Many sequences on one executable, advanced batch by batch by whoever calls `step`.

    Not for several threads; only `Sequence.cancel` is.

    Parameters
    ----------
    prefixes : where sequences that ended are kept, and prompts find what is there of them; it
        belongs to the caller. None keeps nothing.
    speculation : how sequences are drafted for that don't say it themselves.
    clock : seconds; what policies learn from.
    """

    def __init__(
        self,
        executable: Executable,
        tokenizer: Tokenizer,
        *,
        options: EngineOptions = DEFAULTS,
        prefixes: PrefixCache | None = None,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.executable, self.tokenizer, self.options = executable, tokenizer, options
        self.prefixes, self.speculation, self.clock = prefixes, speculation, clock
        self.steps, self._numbers, self._finished = 0, 0, 0.0
        self._places = Places(executable, prefixes)
        self._line = Line(self._places, options)
        self._under_way: Step | None = None
        self._vocabulary = vocabulary_size(executable.program)
        self._drafters = Drafters(executable, clock)
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
        """Have a request served; nothing is computed before `step`.

        Parameters
        ----------
        priority : a point counts as having come `PATIENCE` steps earlier.
        record : keep every step in `Sequence.rounds`.
        cancelled : asked before every step.

        Raises
        ------
        RequestError : no request, too many are waiting, or embeddings do not fit the prompt.
        """
        request = checked_request(request, self.executable.program)
        request = with_marks(request, self.prefixes, self.tokenizer)
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
        self._line.join(sequence)
        self._numbers += 1
        return sequence

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences that have no place yet."""
        return self._line.waiting

    @property
    def running(self) -> list[Sequence]:
        """Sequences that have a state."""
        return self._line.running

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self.running or self._under_way)

    def run(self) -> None:
        """Step until idle."""
        while self.step():
            pass

    def step(self) -> bool:
        """Compute one batch and commit it; whether there is more to do.

        On an asynchronous executable the next batch is submitted before this one is read, with
        what it draws as its input, unless some sequence drafts or is masked: ids come first then.
        """
        try:
            self._end_cancelled()
            self._admit()
            step = self._under_way or self._submit(None)
            self._under_way = None
            if step is not None:
                self.steps += 1
                if self._runs_ahead():
                    self._under_way = self._submit(step)
                self._finish(step)
        except BaseException as error:
            self._abandon(error)
            raise
        return not self.idle

    def _runs_ahead(self) -> bool:
        asynchronous = getattr(self.executable, "asynchronous", False)
        needs_ids = self._line.blocked or any(s.needs_ids for s in self.running)
        return asynchronous and not needs_ids

    def _end_cancelled(self) -> None:
        for sequence in [*self.waiting, *self.running]:
            if sequence.is_cancelled:
                sequence.output.finish("cancelled")
                self._end(sequence)

    def _admit(self) -> None:
        """Let those that wait have what places there are."""
        self._line.blocked = False
        while True:
            try:
                sequence = self._line.next(self._under_way is None)
            except Refusal as refusal:
                self._end(refusal.sequence, refusal.error)
                continue
            if sequence is None:
                return
            self._drafters.open(sequence)

    def preempt(self, sequence: Sequence, keep: int = 0) -> None:
        """Let a running sequence forget its rows from `keep` on; at 0 it waits for a place again.

        No token changes. One with rows under way, or no token since it last forgot, keeps them.
        """
        if sequence in self.running and sequence.may_forget and not self._holds(sequence):
            self._line.preempt(sequence, keep)

    def _holds(self, sequence: Sequence) -> bool:
        """Whether a batch under way has rows of it."""
        return self._under_way is not None and self._under_way.part_of(sequence) is not None

    def _submit(self, before: Step | None) -> Step | None:
        """Plan the next batch and hand it to the executable."""
        started = self.clock()
        going = [s for s in self.running if not s.done]
        parts = plan_parts(going, self.options.batch_rows, before, self._drafters.propose)
        if not parts:
            return None
        for part in parts:
            part.sequence.served = self.steps
            if self._costly and part.draft.ids:
                part.checkpoint = part.state.snapshot()
        step = Step(parts, started)
        try:
            with blamed_on(self._places.backend):
                step.ticket = self.executable.forward(Batch(step.rows))
        except Exception as error:
            self._lose(step, error)
            return None
        return step

    def _finish(self, step: Step) -> None:
        """Wait for a batch and commit it, sequence by sequence."""
        assert step.ticket is not None
        try:
            with blamed_on(self._places.backend):
                result = step.ticket.result()
        except Exception as error:
            self._lose(step, error)
            return
        counts = [self._commit(step, part, result) for part in step.parts]
        now = self.clock()
        wall, self._finished = now - max(step.started, self._finished), now
        for part, got in zip(step.parts, counts, strict=True):
            if got.emitted:
                record(step, part, got, wall)

    def _lose(self, step: Step, error: Exception) -> None:
        """A batch that raised: nobody knows what its sequences hold now."""
        for part in step.parts:
            self._fail(part.sequence, error)

    def _commit(self, step: Step, part: Part, result: BatchResult) -> Committed:
        """What became of one sequence; what it got."""
        sequence = part.sequence
        got = NO_TOKEN
        try:
            outcome = result.outcomes.get(part.state)
            if outcome is None:
                raise BackendError("the backend does not say what became of a sequence")
            if outcome.status is not Status.COMPLETED:
                check_outcome(outcome, part.stop - 1, failure_hint(self.executable))
            if part.draws and not sequence.done:
                got = commit(step, part, result.rows, self._vocabulary)
            with blamed_on(self._places.backend):
                settle(sequence, part.state, part)
        except Exception as error:
            self._fail(sequence, error)
            return NO_TOKEN
        self._drafters.observe(part, result.rows)
        self._go_on(sequence, part)
        return got

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence with an error; one that had ended before has rows nobody asked about."""
        if not sequence.done:
            self._end(sequence, error)
        self._places.drop(sequence)

    def _go_on(self, sequence: Sequence, part: Part) -> None:
        """End a sequence whose text has ended; keep its state where a mark says so."""
        if sequence.done or sequence.output.finish_reason:
            self._end(sequence)
            return
        if not part.draws:
            prompt = len(sequence.request.prompt)
            if sequence.progress and sequence.fed <= prompt:
                sequence.progress(sequence.fed, prompt)
        self._places.keep_marked(sequence)

    def _end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        """Nothing more will come of a sequence; its state is kept, or freed, when nothing moves."""
        sequence.done = True
        sequence.error = sequence.error or error
        self._line.leave(sequence)
        self._drafters.close(sequence)
        if not self._holds(sequence):
            reason = sequence.output.finish_reason
            role = Role.BRANCH if reason == "cancelled" else Role.TURN
            self._places.retire(sequence, role)

    def close(self) -> None:
        """End what is under way, as cancelled, and free every sequence that is not kept."""
        for sequence in [*self.waiting, *self.running]:
            sequence.cancel()
        self.run()

    def _abandon(self, error: BaseException) -> None:
        """After an interrupt or a lack of memory: every sequence ends with it."""
        step, self._under_way = self._under_way, None
        for sequence in [*self.waiting, *self.running]:
            self._end(sequence, error)
        for part in step.parts if step else []:
            self._places.drop(part.sequence)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


def pieces(engine: Engine, sequence: Sequence) -> Iterator[str]:
    """Step an engine until a sequence has ended, yielding its text; raises what it ended with."""
    while not sequence.done:
        engine.step()
        yield from sequence.take()
    yield from sequence.take()
    if sequence.error is not None:
        raise sequence.error
