"""The application: its paths, and what each of them does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Scope

from cortiq.errors import shown
from cortiq.serve.answers import ClientGone, EventStream, Make, unless_gone, whole
from cortiq.serve.asked import Asked, read_chat, read_text
from cortiq.serve.embeddings import read_embeddings
from cortiq.serve.errors import ApiError, as_api_error, too_deep
from cortiq.serve.fields import Fields, read_body
from cortiq.serve.gate import Gate
from cortiq.serve.job import Job
from cortiq.serve.logs import job_facts
from cortiq.serve.metrics import CONTENT_TYPE, Metrics
from cortiq.serve.options import ServeOptions
from cortiq.serve.pages import FILES, page_of
from cortiq.serve.replies import ChatChoice, Head, TextChoice
from cortiq.serve.served import Served
from cortiq.serve.wanted import model_name

PLACES = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models",
    "/health", "/metrics",
)  # fmt: skip
"""Paths that a client who is lost is told."""
PATHS = tuple(path.removeprefix("/v1") for path in PLACES)
"""Paths that are counted, `/v1` aside."""
READERS = 2
"""Threads that render templates and cut texts into tokens."""
DROP_SECONDS, DROP_BYTES = 2.0, 64 << 20
"""How long, and how much, a body that is too big is still listened to."""
T = TypeVar("T")


class Service:
    """The models behind the server, and what its paths do."""

    def __init__(
        self, models: Mapping[str, Served], options: ServeOptions, metrics: Metrics
    ) -> None:
        self.models, self.options, self.metrics = models, options, metrics
        self._readers = ThreadPoolExecutor(READERS, "reader")

    def start(self) -> None:
        """Start every model's thread; called on the event loop."""
        for model in self.models.values():
            model.worker.start(asyncio.get_running_loop())

    def stop(self) -> None:
        """End every model's thread, and what it has under way."""
        for model in self.models.values():
            model.worker.stop()
        self._readers.shutdown(cancel_futures=True)

    def find(self, name: str) -> Served:
        """A model by name; ApiError (404) for one that is not served."""
        if name in self.models:
            return self.models[name]
        there = ", ".join(self.models)
        message = f"The model {name[:80]!r} does not exist here; there are: {there}."
        raise ApiError(404, message, "model_not_found", "model")

    async def read(self, request: HttpRequest, work: Callable[[], T]) -> T:
        """Do some reading off the event loop; what nobody waits for any more is not begun.

        Raises
        ------
        ClientGone : the client went away first.
        ApiError : what was sent is nested deeper than a step of the reading can go.
        """
        reading = asyncio.get_running_loop().run_in_executor(self._readers, work)

        async def wait() -> T:
            try:
                return await reading
            except RecursionError:
                raise too_deep() from None

        return await unless_gone(request.receive, wait())

    async def body(self, request: HttpRequest) -> Fields:
        """The request's object; ApiError when it is too big, too slow, or none.

        ClientGone when the client goes away before all of it has come.
        """
        most, data = self.options.body_bytes, bytearray()
        length = request.headers.get("content-length", "0")
        parts = request.stream()
        try:
            async with asyncio.timeout(self.options.body_seconds):
                if length.isdigit() and int(length[:20]) > most:
                    raise too_big(most)
                async for part in parts:
                    data += part
                    if len(data) > most:
                        raise too_big(most)
        except ClientDisconnect:
            raise ClientGone from None
        except TimeoutError:
            raise ApiError(408, "The body did not come in time.", "body_timeout") from None
        except ApiError:
            await drop(parts)
            raise
        return await self.read(request, lambda: read_body(bytes(data)))

    async def chat(self, request: HttpRequest) -> Response:
        """`POST /v1/chat/completions`."""
        fields = await self.body(request)
        served = self.find(model_name(fields))
        tokens = self.options.answer_tokens
        asked = await self.read(request, lambda: read_chat(served, fields, tokens))
        head = Head("chat.completion", "chatcmpl", asked)
        return await self._answer(request, asked, head, ChatChoice)

    async def text(self, request: HttpRequest) -> Response:
        """`POST /v1/completions`."""
        fields = await self.body(request)
        served = self.find(model_name(fields))
        asked = await self.read(request, lambda: read_text(served, fields))
        return await self._answer(
            request, asked, Head("text_completion", "cmpl", asked), TextChoice
        )

    async def _answer(self, request: HttpRequest, asked: Asked, head: Head, make: Make) -> Response:
        job, worker = Job(asked.requests), asked.served.worker
        facts = request.state.facts
        facts["model"] = asked.served.name

        def over() -> None:
            worker.cancel(job)
            facts.update(job_facts(job))

        worker.submit(job)
        if asked.wanted.stream:
            try:
                accepted = await job.updates.get()
            except BaseException:
                over()
                raise
            if accepted.error is not None:
                raise as_api_error(accepted.error) from accepted.error
            seconds = self.options.write_seconds
            return EventStream(asked, job, head, make, seconds, over)
        try:
            return await whole(request, asked, job, head, make)
        finally:
            over()

    async def embed(self, request: HttpRequest) -> Response:
        """`POST /v1/embeddings`."""
        fields = await self.body(request)
        served = self.find(model_name(fields))
        texts = await self.read(request, lambda: read_embeddings(served, fields))
        request.state.facts["model"] = served.name
        job = served.worker.compute(texts.steps())

        async def wait() -> None:
            await job

        try:
            await unless_gone(request.receive, wait())
        finally:
            job.cancel()
        return JSONResponse(texts.reply(job.result()))

    async def list_models(self, request: HttpRequest) -> Response:
        """`GET /v1/models`."""
        data = [model.as_dict() for model in self.models.values()]
        return JSONResponse({"object": "list", "data": data})

    async def one_model(self, request: HttpRequest) -> Response:
        """`GET /v1/models/NAME`."""
        return JSONResponse(self.find(request.path_params["name"]).as_dict())

    async def show_metrics(self, request: HttpRequest) -> Response:
        """`GET /metrics`, for Prometheus."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def health(self, request: HttpRequest) -> Response:
        """`GET /health`: 503 when a model's thread has ended."""
        dead = [name for name, model in self.models.items() if model.worker.failed]
        status = {"status": "engine stopped" if dead else "ok", "models": list(self.models)}
        return JSONResponse(status, 503 if dead else 200)


def too_big(most: int) -> ApiError:
    """A body of more bytes than are taken."""
    return ApiError(413, f"The body is larger than {most} bytes.", "body_too_large")


async def drop(parts: AsyncIterator[bytes]) -> None:
    """Read what a client still sends, and forget it, within bounds.

    One whose connection is closed while it sends would not look at the answer.
    """
    count = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DROP_SECONDS):
            async for part in parts:
                count += len(part)
                if count > DROP_BYTES:
                    return


def application(service: Service, bound: str = "") -> Gate:
    """Everything, gate included; `bound` is the address it listens on."""
    posts = {"/chat/completions": service.chat, "/completions": service.text}
    posts["/embeddings"] = service.embed
    gets = {"/models": service.list_models, "/models/{name:path}": service.one_model}
    routes = [Route("/health", service.health), Route("/metrics", service.show_metrics)]
    routes += [Route(path, page_of(path)) for path in FILES]
    for prefix in ("/v1", ""):
        routes += [Route(prefix + path, do, methods=["POST"]) for path, do in posts.items()]
        routes += [Route(prefix + path, do, methods=["GET"]) for path, do in gets.items()]
    return Gate(
        Router(routes, redirect_slashes=False, default=nowhere),
        service.options,
        service.metrics.request,
        bound,
    )


async def nowhere(scope: Scope, receive: object, send: object) -> None:
    """Every other path."""
    there = ", ".join(PLACES)
    raise ApiError(
        404, f"There is nothing at {shown(scope['path'])}; there are {there}.", "not_found"
    )
