"""A model that the server offers, loaded or not, and the requests that use or await it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cortiq.errors import CortiqError
from cortiq.formats.fetch import KNOWN_MODELS, cached, size_of
from cortiq.formats.hub import is_hub_name
from cortiq.serve.served_model import ServedModel

ModelState = Literal["unloaded", "waiting", "loading", "loaded", "draining", "failed"]


@dataclass(eq=False)
class OfferedModel:
    """A name that clients may ask for.

    Attributes
    ----------
    name : its `id` for clients. source : the model that is loaded under it.
    state : `waiting` for a place, `draining` until its requests have ended and it is unloaded.
    served : the model while it is loaded.
    users : requests that hold it. waiters : those that wait until it is loaded.
    leaving : whether it is to be unloaded as soon as no request holds it.
    pulled : whether a request brought the name, which a failure to load takes away again.
    used_at, loaded_at : monotonic times of the last use and of loading, which took load_seconds.
    size : bytes of its weights, or of its files before it was loaded; 0 if unknown.
    keep_seconds : time it stays loaded without requests; None has no end.
    error : why it could not be loaded. entry : what `/v1/models` said when it was loaded last.
    tag : what Ollama's API said. model_hash : its hash once it was loaded.
    """

    name: str
    source: str
    state: ModelState = "unloaded"
    served: ServedModel | None = None
    users: int = 0
    waiters: deque[asyncio.Future[ServedModel]] = field(default_factory=deque)
    leaving: bool = False
    pulled: bool = False
    used_at: float = field(default_factory=time.monotonic)
    loaded_at: float = 0.0
    load_seconds: float = 0.0
    size: int = 0
    keep_seconds: float | None = None
    error: BaseException | None = None
    entry: dict[str, Any] = field(default_factory=dict)
    tag: dict[str, Any] = field(default_factory=dict)
    model_hash: str = ""

    @property
    def awaited(self) -> bool:
        """Whether a request waits for it."""
        return any(not waiter.done() for waiter in self.waiters)

    @property
    def idle(self) -> bool:
        """Whether it is loaded, and no request holds or awaits it."""
        return self.served is not None and not self.users and not self.awaited

    def expired(self, now: float) -> bool:
        """Return whether it was idle for as long as it stays loaded."""
        kept = self.keep_seconds
        return kept is not None and self.idle and now - self.used_at >= kept

    def note_loaded(self, served: ServedModel, seconds: float, tag: dict[str, Any]) -> None:
        """Record that it was loaded, and what is said about it from then on."""
        self.served, self.state, self.error = served, "loaded", None
        self.load_seconds, self.loaded_at = seconds, time.monotonic()
        self.used_at, self.model_hash = self.loaded_at, served.model.model_hash
        self.entry, self.tag = served.as_dict(), tag
        self.size = int(tag.get("size", 0)) or self.size

    def hand_out(self) -> None:
        """Give the loaded model to all requests that wait for it."""
        assert self.served is not None
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                self.users += 1
                waiter.set_result(self.served)

    def refuse(self, error: BaseException) -> None:
        """Fail all requests that wait for it."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    @property
    def summary(self) -> str:
        """Its name, and where it runs."""
        if self.served is None:
            return f"{self.name}, loaded when it is asked for"
        model = self.served.model
        return f"{self.name} on {model.backend}:{model.device}, {self.served.fingerprint}"

    def as_dict(self) -> dict[str, Any]:
        """Return its entry in `/v1/models`."""
        waiting = sum(not waiter.done() for waiter in self.waiters)
        known = self.entry or {"id": self.name, "object": "model", "owned_by": "cortiq",
                               "type": "model", "display_name": self.name, "created": 0,
                               "created_at": "1970-01-01T00:00:00+00:00"}  # fmt: skip
        state = {"state": self.state, "requests": self.users, "waiting": waiting}
        failed = {"error": str(self.error)} if self.error is not None else {}
        return {**known, **state, **failed}


def is_pullable(name: str) -> bool:
    """Return whether requests may fetch this model: never a path, an address, or a formula."""
    return name in KNOWN_MODELS or is_hub_name(name)


def file_bytes(source: str) -> int:
    """Return the size of a model's files on this machine; 0 where there are none."""
    try:
        fetched = is_pullable(source)
        path = cached(source) if fetched else Path(source).expanduser()
        return size_of(path) if path is not None and path.exists() else 0
    except (CortiqError, OSError):
        return 0
