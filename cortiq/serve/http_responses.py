"""HTTP responses from a job's updates: one JSON object, or a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cortiq.serve.errors import ApiError, as_api_error, invalid, shutting_down
from cortiq.serve.generation_job import ChoiceUpdate, GenerationJob
from cortiq.serve.logs import LOG
from cortiq.serve.parsed_request import ParsedRequest

KEEP_ALIVE_SECONDS = 5.0
"""A silent stream sends a comment at this interval, for proxies and clients."""
PROGRESS_SECONDS = 0.5
"""Least time between two progress comments."""
LAST_EVENT_SECONDS = 1.0
"""Time a client has to read that its stream was interrupted."""
T = TypeVar("T")


async def job_updates(job: GenerationJob) -> AsyncIterator[ChoiceUpdate | None]:
    """Yield a job's updates until all its choices have ended; None after a silent while.

    Raises
    ------
    ApiError : a choice ended with an error, which ends the whole response.
    """
    left = len(job.requests)
    while left:
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                first = await job.updates.get()
        except TimeoutError:
            yield None
            continue
        for update in job.waiting_updates(first):
            _check(job, update)
            left -= bool(update.finish)
            yield update


def _check(job: GenerationJob, update: ChoiceUpdate) -> None:
    """Refuse an update that is the error of its choice."""
    if update.error is not None:
        raise as_api_error(update.error) from update.error
    if fault := getattr(job.requests[update.choice].masks, "fault", ""):
        raise invalid(
            f"The answer could not follow the requested format: {fault}.", code="invalid_schema"
        )


class AnswerWriter(Protocol):
    """Writes one response in the form of an API; made for one job and fed with its updates.

    Every text is a piece of the streamed body. `whole` is the response that is not streamed, after
    all updates; it is not called with `end`.
    """

    media_type: str

    def begin(self) -> str:
        """Return what opens the stream."""

    def take(self, update: ChoiceUpdate) -> str:
        """Return what an update adds to the stream."""

    def end(self) -> str:
        """Return what ends the stream."""

    def fail(self, error: ApiError) -> str:
        """Return what ends a stream with an error."""

    def idle(self, note: str) -> str:
        """Return what keeps a silent stream alive, with a note where comments are possible."""

    def whole(self) -> dict[str, Any]:
        """Return the response as one object."""


MakeWriter = Callable[[ParsedRequest, GenerationJob], AnswerWriter]
"""Makes the writer of a request's answer."""


async def json_response(request: HttpRequest, job: GenerationJob, writer: AnswerWriter) -> Response:
    """Return the whole response as JSON; raise ClientGone if the client disconnects first."""
    writer.begin()

    async def collect() -> None:
        async for update in job_updates(job):
            if update is not None:
                writer.take(update)

    await unless_gone(request.receive, collect())
    return JSONResponse(writer.whole())


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; raise ClientGone if the client disconnects first."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGone
        return await doing
    finally:
        for task in (doing, watching):
            task.cancel()


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientGone(Exception):
    """The client has disconnected."""


class AnswerStream(Response):
    """A response that is streamed as its text is generated.

    Parameters
    ----------
    write_seconds : a client that does not read for this long is disconnected.
    on_end : called when nothing more will be sent, for whatever reason.

    Attributes
    ----------
    error_facts : facts for the log about the error that ended it; empty without one.
    """

    def __init__(
        self,
        job: GenerationJob,
        writer: AnswerWriter,
        write_seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=headers, media_type=writer.media_type)
        del self.headers["content-length"]
        self.job, self.writer = job, writer
        self.write_seconds, self.on_end = write_seconds, on_end
        self.error_facts: dict[str, str] = {}
        self._last_progress = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces until the end or until the client disconnects."""
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
            async for text in self.pieces():
                await write(text)
            await write("", more=False)

        try:
            await unless_gone(receive, stream())
        except TimeoutError:
            raise ClientGone from None
        except asyncio.CancelledError:
            if begun:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_EVENT_SECONDS):
                        await write(self.writer.fail(shutting_down()), more=False)
            raise
        finally:
            self.on_end()
            scope["state"]["facts"].update(self.error_facts)

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the pieces of the body."""
        try:
            if text := self.writer.begin():
                yield text
            async for update in job_updates(self.job):
                if text := self._text(update):
                    yield text
        except ApiError as error:
            self.error_facts = error.facts
            if error.status >= 500:
                LOG.error("a request failed", exc_info=error)
            yield self.writer.fail(error)
            return
        yield self.writer.end()

    def _text(self, update: ChoiceUpdate | None) -> str:
        if update is None:
            return self.writer.idle("waiting")
        if update.progress is not None:
            return self._progress(*update.progress)
        return self.writer.take(update)

    def _progress(self, done: int, total: int) -> str:
        """Return the prompt's progress, from time to time."""
        now = asyncio.get_running_loop().time()
        if now - self._last_progress < PROGRESS_SECONDS:
            return ""
        self._last_progress = now
        return self.writer.idle(f"prompt {done}/{total}")
