"""HTTP responses from a job's updates: one JSON object, or a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cortiq.serve.choice_builders import ChoiceBuilder, ResponseHead, usage
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
MakeBuilder = Callable[[int, ParsedRequest], ChoiceBuilder]
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
                update = await job.updates.get()
        except TimeoutError:
            yield None
            continue
        if update.error is not None:
            raise as_api_error(update.error) from update.error
        left -= bool(update.finish)
        if fault := getattr(job.requests[update.choice].masks, "fault", ""):
            raise invalid(
                f"The answer could not follow the requested format: {fault}.", code="invalid_schema"
            )
        yield update


async def json_response(
    request: HttpRequest,
    parsed: ParsedRequest,
    job: GenerationJob,
    head: ResponseHead,
    make: MakeBuilder,
) -> Response:
    """Return the whole response as JSON; raise ClientGone if the client disconnects first."""
    choices = [make(index, parsed) for index in range(len(parsed.requests))]
    for choice in choices:
        choice.first_chunk()

    async def collect() -> None:
        async for update in job_updates(job):
            if update is not None:
                choices[update.choice].chunks(update)

    await unless_gone(request.receive, collect())
    made = head.object(head.kind, [choice.full_choice() for choice in choices])
    return JSONResponse(made | {"usage": usage(parsed, job)})


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


class EventStream(Response):
    """A response as server-sent events.

    Parameters
    ----------
    write_seconds : a client that does not read for this long is disconnected.
    on_end : called when nothing more will be sent, for whatever reason.

    Attributes
    ----------
    error_facts : facts for the log about the error that ended it; empty without one.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        parsed: ParsedRequest,
        job: GenerationJob,
        head: ResponseHead,
        make: MakeBuilder,
        write_seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.parsed, self.job, self.head = parsed, job, head
        self.choices = [make(index, parsed) for index in range(len(parsed.requests))]
        self.write_seconds, self.on_end = write_seconds, on_end
        self.error_facts: dict[str, str] = {}
        self._last_progress = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the end or until the client disconnects."""
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
                    async with asyncio.timeout(LAST_EVENT_SECONDS):
                        await write(event(shutting_down().as_dict()), more=False)
            raise
        finally:
            self.on_end()
            scope["state"]["facts"].update(self.error_facts)

    async def events(self) -> AsyncIterator[str]:
        """Yield the events as text."""
        try:
            firsts = [one for choice in self.choices if (one := choice.first_chunk())]
            if firsts:
                yield "".join(self._event([one]) for one in firsts)
            async for update in job_updates(self.job):
                if text := self._texts(update):
                    yield text
        except ApiError as error:
            self.error_facts = error.facts
            if error.status >= 500:
                LOG.error("a request failed", exc_info=error)
            yield event(error.as_dict())
            return
        if self.parsed.params.include_usage:
            yield self._event([], usage(self.parsed, self.job))
        yield "data: [DONE]\n\n"

    def _texts(self, update: ChoiceUpdate | None) -> str:
        if update is None:
            return ": waiting\n\n"
        if update.progress is not None:
            return self._progress(*update.progress)
        return "".join(self._event([one]) for one in self.choices[update.choice].chunks(update))

    def _progress(self, done: int, total: int) -> str:
        """Return an SSE comment with the prompt's progress; clients ignore it."""
        now = asyncio.get_running_loop().time()
        if now - self._last_progress < PROGRESS_SECONDS:
            return ""
        self._last_progress = now
        return f": prompt {done}/{total}\n\n"

    def _event(self, choices: list[dict[str, Any]], used: Mapping[str, Any] | None = None) -> str:
        kind = self.head.kind + (".chunk" if self.head.kind.startswith("chat") else "")
        made = self.head.object(kind, choices)
        if self.parsed.params.include_usage:
            made["usage"] = used
        return event(made)


def event(made: Mapping[str, Any]) -> str:
    """Return an object as a server-sent event."""
    return f"data: {json.dumps(made, ensure_ascii=False, separators=(',', ':'))}\n\n"
