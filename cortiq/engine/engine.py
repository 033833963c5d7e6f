"""The engine: sequences admitted, batched, advanced and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cortiq.backend import BatchResult, Executable, Status
from cortiq.backend.batch import Batch
from cortiq.engine.accept import commit, settle
from cortiq.engine.batch import Part, Step, plan_parts
from cortiq.engine.drafting import NOTHING, Draft, FixedDepth, Round, Speculation, Task
from cortiq.engine.output import Output
from cortiq.engine.places import Places
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.roles import Role
from cortiq.engine.schedule import urgency
from cortiq.engine.sequence import Progress, Sequence
from cortiq.errors import BackendError, RequestError
from cortiq.ir import Recurrent
from cortiq.runtime.blame import blamed_on, failure_hint, names_of
from cortiq.runtime.request import Request, vocabulary_size
from cortiq.runtime.sequence import check_outcome
from cortiq.runtime.statistics import Statistics
from cortiq.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class EngineOptions:
    """Bounds of an engine; none changes a token.

    Attributes
    ----------
    batch_rows : rows of a batch at most.
    sequences : at work at once; others wait.
    waiting : requests that may wait; more are refused.
    """

    batch_rows: int = 256
    sequences: int = 64
    waiting: int = 1 << 16


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
        options: EngineOptions = EngineOptions(),
        prefixes: PrefixCache | None = None,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.executable, self.tokenizer, self.options = executable, tokenizer, options
        self.prefixes, self.speculation, self.clock = prefixes, speculation, clock
        self.steps = 0
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._places = Places(executable, prefixes)
        self._under_way: Step | None = None
        self._numbers = 0
        self._vocabulary = vocabulary_size(executable.program)
        trunk = executable.program.trunk.written_slots()
        slots = executable.program.slots
        self._costly = any(isinstance(slots[name], Recurrent) for name in trunk)

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
        RequestError : too many are waiting.
        """
        if len(self.waiting) >= self.options.waiting:
            raise RequestError(
                f"{len(self.waiting)} requests are waiting", hint="try again when some have ended"
            )
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
        self._numbers += 1
        self.waiting.append(sequence)
        return sequence

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
        what it draws as its input, unless some sequence drafts: then ids are needed first.
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
        return asynchronous and not any(sequence.drafting for sequence in self.running)

    def _end_cancelled(self) -> None:
        for sequence in [*self.waiting, *self.running]:
            if sequence.is_cancelled:
                sequence.output.finish("cancelled")
                self._end(sequence)

    def _admit(self) -> None:
        """Give the most urgent of those that wait a place, while there are places."""
        self.waiting.sort(key=_urgency)
        while self.waiting and len(self.running) < self.options.sequences:
            sequence = self.waiting[0]
            try:
                found = self._places.find(sequence, self.running, self._under_way is None)
                if not found and not self._preempt_for(sequence):
                    return
            except Exception as error:
                self._end(sequence, error)
                continue
            if found:
                self.waiting.remove(sequence)
                self.running.append(sequence)
                self._open_drafting(sequence)

    def _preempt_for(self, sequence: Sequence) -> bool:
        """Take the place of one of lower priority; whether there was one."""
        lower = [s for s in self.running if s.priority < sequence.priority]
        if not lower or self._under_way is not None:
            return False
        self.preempt(max(lower, key=_urgency))
        return True

    def preempt(self, sequence: Sequence, keep: int = 0) -> None:
        """Let a running sequence forget its rows from `keep` on; at 0 it waits for a place again.

        It will feed them again: no token changes.
        """
        if sequence not in self.running or self._holds(sequence):
            return
        state = sequence.state
        assert state is not None
        if keep > 0:
            with blamed_on(names_of(self.executable)):
                sequence.fed = state.rewind(min(keep, sequence.fed))
            return
        self.running.remove(sequence)
        self._places.retire(sequence, Role.BRANCH)
        sequence.fed = 0
        sequence.stats.preempted += 1
        self.waiting.append(sequence)

    def _holds(self, sequence: Sequence) -> bool:
        """Whether a batch under way has rows of it."""
        return self._under_way is not None and self._under_way.part_of(sequence) is not None

    def _open_drafting(self, sequence: Sequence) -> None:
        chosen = sequence.speculation
        if chosen is None or sequence.drafting or sequence.stats.drafts.error:
            return
        task = Task(
            sequence.request.prompt,
            sequence.request.limit,
            sequence.request.want_at,
            self.executable,
            lambda: sequence.state,  # type: ignore[arg-type,return-value]
        )
        try:
            sequence.drafting = chosen.drafter.open(task)
            sequence.policy = chosen.policy(len(sequence.request.prompt))
        except Exception as error:
            self._stop_drafting(sequence, error)

    def _stop_drafting(self, sequence: Sequence, error: Exception) -> None:
        """A drafter that fails is used no further; the text goes on, and its statistics say so."""
        sequence.stats.drafts.error = f"{type(error).__name__}: {error}"
        drafting, sequence.drafting = sequence.drafting, None
        sequence.policy = FixedDepth(0)
        if drafting is not None:
            drafting.close()

    def _propose(self, sequence: Sequence, depth: int) -> tuple[Draft, float]:
        started = self.clock()
        try:
            assert sequence.drafting is not None
            draft = sequence.drafting.propose(sequence.ids, depth)
            ids = [int(token) for token in draft.ids[:depth]]
            sound = next((i for i, t in enumerate(ids) if not 0 <= t < self._vocabulary), len(ids))
            draft = Draft(tuple(ids[:sound]), max(0, draft.extended - (len(draft.ids) - sound)))
        except Exception as error:
            self._stop_drafting(sequence, error)
            draft = NOTHING
        return draft, self.clock() - started

    def _submit(self, before: Step | None) -> Step | None:
        """Plan the next batch and hand it to the executable."""
        started = self.clock()
        going = [s for s in self.running if not s.done]
        parts = plan_parts(going, self.options.batch_rows, before, self._propose)
        if not parts:
            return None
        for part in parts:
            part.sequence.served = self.steps
            if self._costly and part.draft.ids:
                part.checkpoint = part.state.snapshot()
        step = Step(parts, started)
        try:
            with blamed_on(names_of(self.executable)):
                step.ticket = self.executable.forward(Batch(step.rows))
        except Exception as error:
            self._lose(step, error)
            return None
        return step

    def _finish(self, step: Step) -> None:
        """Wait for a batch and commit it, sequence by sequence."""
        assert step.ticket is not None
        try:
            with blamed_on(names_of(self.executable)):
                result = step.ticket.result()
        except Exception as error:
            self._lose(step, error)
            return
        counts = [self._commit(step, part, result) for part in step.parts]
        now = self.clock()
        for part, emitted in zip(step.parts, counts, strict=True):
            if emitted:
                self._record(step, part, emitted, now)

    def _lose(self, step: Step, error: Exception) -> None:
        """A batch that raised: nobody knows what its sequences hold now."""
        for part in step.parts:
            if not part.sequence.done:
                self._end(part.sequence, error)
            self._places.drop(part.sequence)

    def _commit(self, step: Step, part: Part, result: BatchResult) -> int:
        """What became of one sequence; how many tokens it got."""
        sequence = part.sequence
        ended = sequence.done
        emitted = 0
        try:
            outcome = result.outcomes.get(part.state)
            if outcome is None:
                raise BackendError("the backend does not say what became of a sequence")
            if ended:
                if outcome.status is not Status.COMPLETED:
                    self._places.drop(sequence)
                    return 0
            else:
                check_outcome(outcome, part.stop - 1, failure_hint(self.executable))
                if part.draws:
                    emitted = commit(step, part, result.rows, self._vocabulary)
            with blamed_on(names_of(self.executable)):
                settle(sequence, part.state, part)
            self._observe(part, result)
        except Exception as error:
            self._end(sequence, error)
            return 0
        self._go_on(sequence, part)
        return emitted

    def _observe(self, part: Part, result: BatchResult) -> None:
        sequence = part.sequence
        if sequence.drafting is None:
            return
        kept = max(0, min(sequence.fed, part.stop) - part.start)
        rows = result.rows[part.first : part.first + kept]
        try:
            sequence.drafting.observe(part.start, rows, sequence.ids)
        except Exception as error:
            self._stop_drafting(sequence, error)

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

    def _record(self, step: Step, part: Part, emitted: int, now: float) -> None:
        sequence = part.sequence
        round_ = Round(
            generated=sequence.generated - emitted,
            position=len(sequence.ids) - emitted,
            room=sequence.room + emitted,
            asked=part.asked,
            proposed=len(part.draft.ids),
            extended=part.draft.extended,
            accepted=emitted - 1,
            emitted=emitted,
            draft_seconds=part.draft_seconds,
            wall_seconds=now - step.started,
            rows=len(step.rows),
            sequences=len(step.parts),
            drafter=sequence.speculation.drafter.name if sequence.speculation else "",
        )
        sequence.stats.drafts.add(round_)
        if sequence.policy is not None:
            sequence.policy.record(round_)
        if sequence.rounds is not None:
            sequence.rounds.append(round_)

    def _end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        """Nothing more will come of a sequence; its state is kept, or freed, when nothing moves."""
        sequence.done = True
        sequence.error = sequence.error or error
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)
        drafting, sequence.drafting = sequence.drafting, None
        if drafting is not None:
            drafting.close()
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


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return urgency(sequence.served, sequence.priority, sequence.number)


def pieces(engine: Engine, sequence: Sequence) -> Iterator[str]:
    """Step an engine until a sequence has ended, yielding its text; raises what it ended with."""
    while not sequence.done:
        engine.step()
        yield from sequence.take()
    yield from sequence.take()
    if sequence.error is not None:
        raise sequence.error
