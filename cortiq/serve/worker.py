"""The thread that owns a model's engine: takes jobs, delivers updates."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from cortiq.engine.drafting import Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.scheduler import EngineOptions
from cortiq.errors import BackendError, ExecutableLostError
from cortiq.model.model import Model
from cortiq.serve.errors import queue_full
from cortiq.serve.generation_job import ChoiceUpdate, GenerationJob

LOG = logging.getLogger("cortiq.serve")
JobUpdate = tuple[GenerationJob, ChoiceUpdate]


class Worker:
    """Runs jobs on one model's engine, on a thread of its own.

    Parameters
    ----------
    waiting : sequences that may queue; more are refused.
    on_step : called on the thread after every step, with its duration in seconds.

    Attributes
    ----------
    late_steps : the most steps that computed rows of a cancelled job although they began after the
        cancellation.
    failed : the exception that ended the thread, or after which nothing can be computed; None
        while there is none.
    """

    def __init__(
        self,
        model: Model,
        options: EngineOptions,
        waiting: int,
        speculation: Speculation | None = None,
        on_step: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.model = model
        self.failed: BaseException | None = None
        self.late_steps = 0
        self.engine = Engine(
            model.executable,
            model.tokenizer,
            options=options,
            prefixes=model.prefixes,
            speculation=speculation,
        )
        self._on_step, self._waiting = on_step, waiting
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: list[GenerationJob] = []
        self._tasks: deque[tuple[Generator[Any, None, None], asyncio.Future[Any]]] = deque()
        self._outbox: list[JobUpdate] = []
        self._open = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name=f"engine {model.name}", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; updates are delivered on this loop."""
        self._loop = loop
        self._thread.start()

    def submit(self, job: GenerationJob) -> None:
        """Submit a job; its output arrives as its updates."""
        self._commands.put(lambda: self._jobs.append(job))

    def cancel(self, job: GenerationJob) -> None:
        """Cancel a job before the next step."""
        job.cancelled, job.cancelled_at = True, self.engine.steps
        self._commands.put(lambda: None)

    def compute(self, task: Generator[Any, None, None]) -> asyncio.Future[Any]:
        """Advance a generator between engine steps, one item at a time, while it yields None.

        A future of what it yields then; cancelling it ends the iterator. ApiError (429) where too
        many wait.
        """
        if len(self._tasks) >= self._waiting:
            raise queue_full(len(self._tasks))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._commands.put(lambda: self._tasks.append((task, future)))
        return future

    def stop(self) -> None:
        """Cancel running jobs, end the thread and wait for it."""

        def close() -> None:
            self._open = False

        self._commands.put(close)
        if self._thread.ident is not None:
            self._thread.join()

    def _main(self) -> None:
        try:
            while self._open:
                self._run_commands()
                self._submit_choices()
                self._step()
                self._advance_task()
                self._publish()
            self.engine.close()
            self._publish()
        except BaseException as error:
            LOG.exception("the engine's thread ended")
            self.failed = error
            self._fail_all(error)

    @property
    def _idle(self) -> bool:
        return self.engine.idle and not self._tasks and not any(j.ready_choices for j in self._jobs)

    def _run_commands(self) -> None:
        """Run the submitted commands; wait for one if there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            self._commands.get(block=self._idle)()
            while True:
                self._commands.get_nowait()()

    def _submit_choices(self) -> None:
        for job in self._jobs:
            for choice in [] if job.cancelled else job.ready_choices:
                self._submit_choice(job, choice)

    def _submit_choice(self, job: GenerationJob, choice: int) -> None:
        """Submit a choice to the engine; if it is refused, end its whole job."""

        def progress(done: int, total: int) -> None:
            self._outbox.append((job, ChoiceUpdate(choice, progress=(done, total))))

        def cancelled() -> bool:
            return job.cancelled

        try:
            self._check_queue()
            request = job.requests[choice]
            self.model.adapters.sync(request.overlay)
            sequence = self.engine.submit(
                request, priority=job.priority, progress=progress, cancelled=cancelled
            )
            job.note_submitted(choice, sequence)
            self._outbox.append((job, ChoiceUpdate(choice)))
        except Exception as error:
            self._outbox.append((job, ChoiceUpdate(choice, error=error)))
            job.cancelled = True

    def _check_queue(self) -> None:
        """Refuse a sequence that could not run in the next step if the queue is full."""
        engine = self.engine
        places = engine.limits.sequences - len(engine.running)
        waiting = len(engine.waiting) - max(0, places)
        if waiting >= self._waiting:
            raise queue_full(waiting)

    def _step(self) -> None:
        """Run one engine step; an error ends its sequences, not the thread."""
        if self.engine.idle:
            return
        started = self.engine.clock()
        try:
            self.engine.step()
        except Exception:
            LOG.exception("a step failed")
        self._on_step(self.engine.clock() - started)

    def _advance_task(self) -> None:
        if not self._tasks:
            return
        task, future = self._tasks.popleft()
        if future.cancelled():
            task.close()
            return
        try:
            value = next(task)
        except Exception as error:
            self._post(partial(_resolve, future, None, error))
            return
        if value is None:
            self._tasks.append((task, future))
        else:
            self._post(partial(_resolve, future, value, None))

    def _publish(self) -> None:
        """Deliver the updates of every job and drop those that ended."""
        for job in self._jobs:
            self._outbox += [(job, u) for u in map(job.take_update, list(job.sequences)) if u]
        for job in self._jobs:
            if job.done:
                self.late_steps = max(self.late_steps, job.late_steps)
        self._jobs = [job for job in self._jobs if not job.done]
        batch, self._outbox = self._outbox, []
        for _, update in batch:
            if isinstance(update.error, ExecutableLostError):
                self.failed = update.error
        if batch:
            self._post(partial(_deliver, batch))

    def _post(self, call: Callable[[], None]) -> None:
        """Schedule a call on the event loop; ignore a closed loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _fail_all(self, error: BaseException) -> None:
        """Fail all jobs, now and until the worker is stopped: the engine's thread has ended."""
        told = BackendError(f"the engine of {self.model.name} has ended: {error}")
        while True:
            batch = [(job, ChoiceUpdate(0, error=told)) for job in self._jobs]
            self._post(partial(_deliver, batch))
            for _, future in self._tasks:
                self._post(partial(_resolve, future, None, told))
            self._jobs, self._tasks = [], deque()
            if not self._open:
                return
            self._commands.get()()


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _deliver(batch: list[JobUpdate]) -> None:
    for job, update in batch:
        job.updates.put_nowait(update)
