"""Loading and unloading the models of a server: which one, when, and to make room for which.

Requests are served in the order in which their models were first asked for. A model in use keeps
its place for its turn, then takes no more requests until it was loaded again: so none starves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from cortiq.errors import CortiqError, RequestError
from cortiq.serve.errors import ApiError, error_sentence
from cortiq.serve.logs import LOG
from cortiq.serve.offered_model import OfferedModel, file_bytes
from cortiq.serve.ollama_models import tag_object
from cortiq.serve.served_model import ServedModel

Result = TypeVar("Result")
LoadServed = Callable[[str], ServedModel]
CloseServed = Callable[[ServedModel], None]
ChangedModel = Callable[[OfferedModel, bool], None]
CHECK_SECONDS = 0.25
"""Interval at which idle times and turns are checked."""
LEAST_TURN, TURN_LOADS = 1.0, 4
"""A model in use keeps its place for so many seconds, or so many times its loading."""


@dataclass(frozen=True)
class PoolLimits:
    """Limits of a pool.

    Attributes
    ----------
    loaded : models in memory at once. size : bytes of their weights; 0 for no limit.
    keep_seconds : how long an idle model stays; None for ever.
    wait_seconds : how long a request waits for its model. waiting : requests that may wait.
    """

    loaded: int
    size: int = 0
    keep_seconds: float | None = None
    wait_seconds: float = 600.0
    waiting: int = 256


class ModelMover:
    """Loads and closes models, one after the other, on a thread of its own.

    Parameters
    ----------
    models : the offered ones, by name; names that were pulled and never loaded are taken out.
    """

    def __init__(
        self,
        models: dict[str, OfferedModel],
        load: LoadServed,
        close: CloseServed,
        limits: PoolLimits,
        changed: ChangedModel,
    ) -> None:
        self._models, self._load_served, self._close = models, load, close
        self._limits, self._changed = limits, changed
        self._queue: list[OfferedModel] = []
        self._thread = ThreadPoolExecutor(1, "loader")
        self._event: asyncio.Event | None = None
        self._moving: asyncio.Task[None] | None = None

    def loaded(self) -> list[OfferedModel]:
        """Return the models in memory."""
        return [model for model in self._models.values() if model.served is not None]

    def start(self) -> None:
        """Begin to load what is asked for; call this on the event loop."""
        self._event = asyncio.Event()
        self._moving = asyncio.get_running_loop().create_task(self._move())

    def stop(self) -> None:
        """Load nothing more, and wait for what is being loaded."""
        moving, self._moving = self._moving, None
        if moving is not None:
            with contextlib.suppress(RuntimeError):  # of a loop that is closed
                moving.get_loop().call_soon_threadsafe(moving.cancel)
        self._thread.shutdown(cancel_futures=True)

    def enqueue(self, model: OfferedModel) -> None:
        """Have a model loaded when its turn comes, for those that wait for it."""
        if model not in self._queue:
            self._queue.append(model)
            if model.served is None and model.state != "loading":
                model.state = "waiting"
        self.wake()

    def wake(self) -> None:
        """Look again at what there is to do."""
        if self._event is not None:
            self._event.set()

    async def _move(self) -> None:
        """Load what is asked for, in order, and unload what is idle."""
        while True:
            await self._pause()
            while self._queue:
                await self._serve_next(self._queue[0])

    async def _serve_next(self, model: OfferedModel) -> None:
        """Load the first model of the queue, and hand it to those that wait for it."""
        try:
            while model.leaving and model.awaited:
                await self._pause()
            if model.served is None and await self._make_room(model):
                await self._load(model)
            if model.served is not None and not model.leaving:
                model.state = "loaded"
                model.hand_out()
        except Exception as error:
            self._fail(model, error)
        self._queue.remove(model)
        if model.state == "waiting":
            model.state = "unloaded"
        if model.pulled and not model.entry:  # never loaded: nobody offered the name
            self._models.pop(model.name, None)

    def _fail(self, model: OfferedModel, error: Exception) -> None:
        LOG.error(f"{model.name} could not be loaded", exc_info=error)
        model.state, model.error = "failed", error
        model.refuse(load_error(model, error))

    async def _pause(self) -> None:
        """Wait until something has changed, but not long, then unload what has to go anyway."""
        assert self._event is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await self._event.wait()
        self._event.clear()
        for model in self.loaded():
            if model.expired(time.monotonic()):
                await self._unload(model, "idle")
            elif model.leaving and not model.users:
                await self._unload(model, "asked for")

    async def _make_room(self, model: OfferedModel) -> bool:
        """Unload others until a model has room; return whether it is still awaited."""
        model.size = model.size or file_bytes(model.source)
        draining: OfferedModel | None = None
        while model.awaited and self._full(model):
            idle = [one for one in self.loaded() if not one.users]
            if idle:
                await self._unload(min(idle, key=lambda one: one.used_at), f"for {model.name}")
                continue
            draining = draining or self._next_to_drain()
            await self._pause()
        if draining is not None and draining.served is not None and not draining.leaving:
            draining.state = "loaded"
            draining.hand_out()
        return model.awaited

    def _full(self, model: OfferedModel) -> bool:
        """Return whether another model has to go before one has room."""
        there = self.loaded()
        size = sum(one.size for one in there) + model.size
        too_large = bool(self._limits.size) and size > self._limits.size
        return bool(there) and (len(there) >= self._limits.loaded or too_large)

    def _next_to_drain(self) -> OfferedModel | None:
        """Let the model that was loaded first take no more requests, if its turn is over."""
        first = min(self.loaded(), key=lambda one: one.loaded_at)
        turn = max(LEAST_TURN, TURN_LOADS * first.load_seconds)
        if time.monotonic() - first.loaded_at < turn:
            return None
        first.state = "draining"
        return first

    async def _load(self, model: OfferedModel) -> None:
        """Load a model; once more with nothing else in memory if that was short."""
        model.state = "loading"
        LOG.info(f"loading {model.name}")
        try:
            served, seconds = await self._run(lambda: self._timed_load(model))
        except MemoryError:
            idle = [one for one in self.loaded() if not one.users]
            if not idle:
                raise
            for one in idle:
                await self._unload(one, f"for {model.name}")
            served, seconds = await self._run(lambda: self._timed_load(model))
        served.worker.start(asyncio.get_running_loop())
        model.note_loaded(served, seconds, tag_object(served))
        LOG.info(f"loaded {model.name} in {seconds:.1f} s")
        self._changed(model, True)

    def _timed_load(self, model: OfferedModel) -> tuple[ServedModel, float]:
        started = time.monotonic()
        served = self._load_served(model.source)
        if self._moving is None:  # stopped meanwhile
            self._close(served)
            raise RequestError("the server is shutting down")
        return served, time.monotonic() - started

    async def _unload(self, model: OfferedModel, why: str) -> None:
        served = model.served
        assert served is not None
        model.served, model.state = None, "waiting" if model.awaited else "unloaded"
        self._changed(model, False)
        try:
            await self._run(served.worker.stop)
            await self._run(lambda: self._close(served))
        except Exception:  # nobody waits for this, and the other models go on
            LOG.exception(f"{model.name} could not be closed")
        model.leaving = False
        LOG.info(f"unloaded {model.name} ({why})")

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def load_error(model: OfferedModel, error: Exception) -> ApiError:
    """Return the error of a model that cannot be loaded."""
    if isinstance(error, MemoryError):
        return ApiError(503, f"There is not enough memory for {model.name}.", "out_of_memory")
    said = error_sentence(error) if isinstance(error, CortiqError) else "the log shows why"
    status = 404 if model.pulled else 500
    return ApiError(status, f"{model.name} could not be loaded: {said}", "load_failed", "model")
