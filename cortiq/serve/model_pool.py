"""The models of a server, and the requests that hold them while they are answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from cortiq.errors import RequestError, shown
from cortiq.serve.errors import ApiError, queue_full
from cortiq.serve.model_mover import ChangedModel, CloseServed, LoadServed, ModelMover, PoolLimits
from cortiq.serve.offered_model import OfferedModel
from cortiq.serve.ollama_models import tag_object
from cortiq.serve.served_model import ServedModel

POLL_SECONDS = 0.01
"""Interval at which the end of an unloading is looked for."""


class ModelPool(Mapping[str, OfferedModel]):
    """The models that a server offers, by name; it belongs to the event loop.

    Parameters
    ----------
    load, close : load a model by its source and free it; called on a thread of the pool's.
    may_pull : says of a name that nobody offered whether a request may bring it.
    changed : called on the event loop after a model was loaded (True) or unloaded.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        load: LoadServed,
        close: CloseServed,
        limits: PoolLimits,
        may_pull: Callable[[str], bool] = lambda name: False,
        changed: ChangedModel = lambda model, loaded: None,
    ) -> None:
        self.limits, self._close, self._changed, self._may_pull = limits, close, changed, may_pull
        self._models = {name: self._offered(name, source) for name, source in sources.items()}
        self._mover = ModelMover(self._models, load, close, limits, changed)

    def __getitem__(self, name: str) -> OfferedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def loaded(self) -> list[OfferedModel]:
        """Return the models in memory."""
        return self._mover.loaded()

    def put(self, name: str, served: ServedModel, seconds: float = 0.0) -> None:
        """Take a model that is loaded already, before the server starts."""
        self._models[name].note_loaded(served, seconds, tag_object(served))
        self._changed(self._models[name], True)

    def start(self) -> None:
        """Start the workers and the loading by request; call this on the event loop."""
        for model in self.loaded():
            assert model.served is not None
            model.served.worker.start(asyncio.get_running_loop())
        self._mover.start()

    def stop(self) -> None:
        """Stop the workers of all models and cancel their requests."""
        self._mover.stop()
        for model in self.loaded():
            assert model.served is not None
            model.served.worker.stop()

    def close(self) -> None:
        """Free all models; they have been stopped."""
        for model in self.loaded():
            assert model.served is not None
            self._close(model.served)
            model.served, model.state = None, "unloaded"

    def offered(self, name: str) -> OfferedModel:
        """Return a model by name; raise ApiError (404) if it is not offered."""
        if name in self._models:
            return self._models[name]
        there = ", ".join(self._models)
        message = f"The model {shown(name[:80])} does not exist here; there are: {there}."
        raise ApiError(404, message, "model_not_found", "model")

    def find(self, name: str) -> OfferedModel:
        """Return a model by name, also one that a request may bring; else raise ApiError (404)."""
        if name not in self._models and self._may_pull(name):
            self._models[name] = self._offered(name, name)
            self._models[name].pulled = True
        return self.offered(name)

    def _offered(self, name: str, source: str) -> OfferedModel:
        return OfferedModel(name, source, keep_seconds=self.limits.keep_seconds)

    async def acquire(self, model: OfferedModel) -> ServedModel:
        """Return the loaded model, which stays so until `release`; load it first if need be.

        Raises
        ------
        ApiError : too many wait (429), it took too long (503), or it cannot be loaded.
        """
        if model.state == "loaded" and model.served is not None:
            model.users += 1
            return model.served
        waiting = sum(len(one.waiters) for one in self._models.values())
        if waiting >= self.limits.waiting:
            raise queue_full(waiting)
        waiter: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        model.waiters.append(waiter)
        self._mover.enqueue(model)
        try:
            async with asyncio.timeout(self.limits.wait_seconds):
                return await waiter
        except TimeoutError:
            self._give_back(model, waiter)
            raise model_waiting(model, self.limits.wait_seconds) from None
        except BaseException:
            self._give_back(model, waiter)
            raise

    def _give_back(self, model: OfferedModel, waiter: asyncio.Future[ServedModel]) -> None:
        """Release what a request got that no longer waits for it."""
        with contextlib.suppress(ValueError):
            model.waiters.remove(waiter)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.release(model)
        waiter.cancel()

    def release(self, model: OfferedModel) -> None:
        """Give a model back that `acquire` returned."""
        model.users -= 1
        model.used_at = time.monotonic()
        self._mover.wake()

    async def load(self, model: OfferedModel) -> None:
        """Load a model although nobody asks it for anything."""
        await self.acquire(model)
        self.release(model)

    async def unload(self, model: OfferedModel) -> None:
        """Unload a model once no request holds it; new requests wait, and load it again."""
        if model.served is None:
            return
        model.leaving, model.state = True, "draining"
        while model.leaving:
            self._mover.wake()
            await asyncio.sleep(POLL_SECONDS)

    def keep(self, model: OfferedModel, seconds: float | None) -> None:
        """Set how long a model stays loaded without requests (None: for ever), if models are
        unloaded here at all.
        """
        if self.limits.keep_seconds is not None or self.limits.loaded < len(self):
            model.keep_seconds = seconds
            self._mover.wake()


def model_waiting(model: OfferedModel, seconds: float) -> ApiError:
    """Return the error (503) of a request that waited too long for its model."""
    message = f"{model.name} was not loaded within {seconds:g} s ({model.state}): try again later."
    return ApiError(503, message, "model_waiting", "model")


def check_names(names: list[str]) -> None:
    """Raise RequestError if two models have the same name."""
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"two models are called {name!r}", hint="serve one of them")
