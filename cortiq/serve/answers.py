"""Answering: a job is submitted, its updates become one object or a stream of chunks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cortiq.serve.asked import Asked
from cortiq.serve.errors import ApiError, as_api_error, cut_off, invalid
from cortiq.serve.job import Job, Update
from cortiq.serve.logs import LOG
from cortiq.serve.replies import Choice, Head, usage

ALIVE_SECONDS = 5.0
"""A stream that has nothing to say sends a comment so often, for proxies and clients."""
PROGRESS_SECONDS = 0.5
"""Least time between two comments about the prompt."""
PARTING_SECONDS = 1.0
"""How long a client may take to read that its stream was cut off."""
Make = Callable[[int, Asked], Choice]
T = TypeVar("T")


async def updates(job: Job) -> AsyncIterator[Update | None]:
    """What comes of a job until all its choices have ended; None when nothing came for a while.

    Raises
    ------
    ApiError : a choice ended with an error; the whole answer does.
    """
    left = len(job.requests)
    while left:
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                update = await job.updates.get()
        except TimeoutError:
            yield None
            continue
        if update.error is not None:
            raise as_api_error(update.error) from update.error
        left -= bool(update.finish)
        if fault := getattr(job.requests[update.choice].masks, "fault", ""):
            raise invalid(f"The form could not be followed: {fault}.", code="invalid_schema")
        yield update


async def whole(request: HttpRequest, asked: Asked, job: Job, head: Head, make: Make) -> Response:
    """One object, when all of it is there; a client that goes away takes its work with it."""
    choices = [make(index, asked) for index in range(len(asked.requests))]
    for choice in choices:
        choice.first()

    async def collect() -> None:
        async for update in updates(job):
            if update is not None:
                choices[update.choice].chunk(update)

    await unless_gone(request.receive, collect())
    made = head.object(head.kind, [choice.whole() for choice in choices])
    return JSONResponse(made | {"usage": usage(asked, job)})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await some work, and return what comes of it; ClientGone when the client goes away first."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGone
        return await doing
    finally:
        for task in (doing, watching):
            task.cancel()


async def gone(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class EventStream(Response):
    """An answer as server-sent events.

    Parameters
    ----------
    write_seconds : a client that does not read for so long is given up.
    over : called when nothing more will be sent, whyever.

    Attributes
    ----------
    failed : what the log has of the error that ended it; empty while there is none.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        asked: Asked,
        job: Job,
        head: Head,
        make: Make,
        write_seconds: float,
        over: Callable[[], None],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.asked, self.job, self.head = asked, job, head
        self.choices = [make(index, asked) for index in range(len(asked.requests))]
        self.write_seconds, self.over = write_seconds, over
        self.failed: dict[str, str] = {}
        self._told = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        begun = False

        async def write(data: str, more: bool = True) -> None:
            async with asyncio.timeout(self.write_seconds):
                body = data.encode()
                await send({"type": "http.response.body", "body": body, "more_body": more})

        async def stream() -> None:
            nonlocal begun
            await send(start)
            begun = True
            async for text in self.events():
                await write(text)
            await write("", more=False)

        try:
            await unless_gone(receive, stream())
        except TimeoutError:
            raise ClientGone from None
        except asyncio.CancelledError:
            if begun:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PARTING_SECONDS):
                        await write(event(cut_off().as_dict()), more=False)
            raise
        finally:
            self.over()
            scope["state"]["facts"].update(self.failed)

    async def events(self) -> AsyncIterator[str]:
        """The texts of the stream."""
        try:
            firsts = [one for choice in self.choices if (one := choice.first())]
            if firsts:
                yield "".join(self._event([one]) for one in firsts)
            async for update in updates(self.job):
                if text := self._texts(update):
                    yield text
        except ApiError as error:
            self.failed = error.facts
            if error.status >= 500:
                LOG.error("a request failed", exc_info=error)
            yield event(error.as_dict())
            return
        if self.asked.wanted.include_usage:
            yield self._event([], usage(self.asked, self.job))
        yield "data: [DONE]\n\n"

    def _texts(self, update: Update | None) -> str:
        if update is None:
            return ": waiting\n\n"
        if update.progress is not None:
            return self._progress(*update.progress)
        return "".join(self._event([one]) for one in self.choices[update.choice].chunk(update))

    def _progress(self, done: int, total: int) -> str:
        """A comment about the prompt; clients pass over it."""
        now = asyncio.get_running_loop().time()
        if now - self._told < PROGRESS_SECONDS:
            return ""
        self._told = now
        return f": prompt {done}/{total}\n\n"

    def _event(self, choices: list[dict[str, Any]], used: Mapping[str, Any] | None = None) -> str:
        kind = self.head.kind + (".chunk" if self.head.kind.startswith("chat") else "")
        made = self.head.object(kind, choices)
        if self.asked.wanted.include_usage:
            made["usage"] = used
        return event(made)


def event(made: Mapping[str, Any]) -> str:
    """An object as an event of a stream."""
    return f"data: {json.dumps(made, ensure_ascii=False, separators=(',', ':'))}\n\n"
