"""The thread that owns a model's engine: jobs in, updates out, nobody else steps it."""

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
from cortiq.errors import BackendError
from cortiq.model.model import Model
from cortiq.serve.errors import queue_full
from cortiq.serve.job import Job, Update

LOG = logging.getLogger("cortiq.serve")
Delivery = tuple[Job, Update]


class Worker:
    """Serves jobs on one model.

    Parameters
    ----------
    waiting : sequences that may wait for a place; more are refused.
    on_step : called by the thread after every step, with what it took in seconds.

    Attributes
    ----------
    late_steps : the most steps that any cancelled job still had rows in, of those that began after
        it was cancelled.
    failed : what ended the thread before its time; None while all is well.
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
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: list[Job] = []
        self._tasks: deque[tuple[Generator[Any, None, None], asyncio.Future[Any]]] = deque()
        self._outbox: list[Delivery] = []
        self._open = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name=f"engine {model.name}", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; updates are delivered on this loop."""
        self._loop = loop
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have a job served; what becomes of it comes as its updates."""
        self._orders.put(lambda: self._jobs.append(job))

    def cancel(self, job: Job) -> None:
        """End a job before the next step."""
        job.cancelled, job.cancelled_at = True, self.engine.steps
        self._orders.put(lambda: None)

    def compute(self, task: Generator[Any, None, None]) -> asyncio.Future[Any]:
        """Advance an iterator between steps, one item at a time, as long as it yields None.

        A future of what it yields then; cancelling it ends the iterator. ApiError (429) where too
        many wait.
        """
        if len(self._tasks) >= self._waiting:
            raise queue_full(len(self._tasks))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._orders.put(lambda: self._tasks.append((task, future)))
        return future

    def stop(self) -> None:
        """End what is under way, as cancelled, and the thread; waits for it."""

        def close() -> None:
            self._open = False

        self._orders.put(close)
        if self._thread.ident is not None:
            self._thread.join()

    def _main(self) -> None:
        try:
            while self._open:
                self._take_orders()
                self._begin_jobs()
                self._step()
                self._advance_task()
                self._publish()
            self.engine.close()
            self._publish()
        except BaseException as error:
            LOG.exception("the engine's thread ended")
            self.failed = error
            self._give_up(error)

    @property
    def _idle(self) -> bool:
        return self.engine.idle and not self._tasks and not any(j.waiting for j in self._jobs)

    def _take_orders(self) -> None:
        """Do what was asked for; where there is nothing else to do, wait for it."""
        with contextlib.suppress(queue.Empty):
            self._orders.get(block=self._idle)()
            while True:
                self._orders.get_nowait()()

    def _begin_jobs(self) -> None:
        for job in self._jobs:
            for choice in [] if job.cancelled else job.waiting:
                self._begin(job, choice)

    def _begin(self, job: Job, choice: int) -> None:
        """Submit a choice; one that is refused ends its whole job."""

        def progress(done: int, total: int) -> None:
            self._outbox.append((job, Update(choice, progress=(done, total))))

        def cancelled() -> bool:
            return job.cancelled

        try:
            self._check_queue()
            request = job.requests[choice]
            job.began(choice, self.engine.submit(request, progress=progress, cancelled=cancelled))
            self._outbox.append((job, Update(choice)))
        except Exception as error:
            self._outbox.append((job, Update(choice, error=error)))
            job.cancelled = True

    def _check_queue(self) -> None:
        """Refuse what would wait longer than for the next step, where enough wait already."""
        engine = self.engine
        places = engine.options.sequences - len(engine.running)
        waiting = len(engine.waiting) - max(0, places)
        if waiting >= self._waiting:
            raise queue_full(waiting)

    def _step(self) -> None:
        """One step; an error that ends every sequence is theirs, and the thread goes on."""
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
            self._post(partial(_settle, future, None, error))
            return
        if value is None:
            self._tasks.append((task, future))
        else:
            self._post(partial(_settle, future, value, None))

    def _publish(self) -> None:
        """Deliver what came of every job, and forget those that ended."""
        for job in self._jobs:
            self._outbox += [(job, u) for u in map(job.news, list(job.sequences)) if u]
        for job in self._jobs:
            if job.done:
                self.late_steps = max(self.late_steps, job.late_steps)
        self._jobs = [job for job in self._jobs if not job.done]
        batch, self._outbox = self._outbox, []
        if batch:
            self._post(partial(_deliver, batch))

    def _post(self, call: Callable[[], None]) -> None:
        """Have the event loop call something; one that is closed has nobody to tell."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _give_up(self, error: BaseException) -> None:
        """Nobody steps the engine any more: tell everybody, now and from now on."""
        told = BackendError(f"the engine of {self.model.name} has ended: {error}")
        while True:
            batch = [(job, Update(0, error=told)) for job in self._jobs]
            self._post(partial(_deliver, batch))
            for _, future in self._tasks:
                self._post(partial(_settle, future, None, told))
            self._jobs, self._tasks = [], deque()
            if not self._open:
                return
            self._orders.get()()


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _deliver(batch: list[Delivery]) -> None:
    for job, update in batch:
        job.updates.put_nowait(update)
