"""The served models, and what handlers do with a request: read it, compute it, answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from cortiq.serve import verification
from cortiq.serve.adapter_names import checked_base
from cortiq.serve.api_keys import ApiKey
from cortiq.serve.completion_params import model_name
from cortiq.serve.completion_writer import chat_writer, text_writer
from cortiq.serve.embeddings import EmbeddingRequest, parse_embeddings
from cortiq.serve.errors import as_api_error, too_deep
from cortiq.serve.fields import Fields, read_body
from cortiq.serve.generation_job import GenerationJob
from cortiq.serve.http_responses import (
    AnswerStream,
    MakeWriter,
    json_response,
    unless_gone,
)
from cortiq.serve.images import FETCHES, Fetches
from cortiq.serve.logs import job_facts
from cortiq.serve.metrics import CONTENT_TYPE, Metrics
from cortiq.serve.model_pool import ModelPool
from cortiq.serve.options import ServeOptions
from cortiq.serve.parsed_request import ParsedRequest, parse_chat, parse_completion
from cortiq.serve.receipt_maker import ReceiptMaker
from cortiq.serve.request_body import body_bytes
from cortiq.serve.request_log import RequestLog
from cortiq.serve.served_model import ServedModel
from cortiq.serve.tokens import detokenize, tokenize
from cortiq.serve.traces import job_phases
from cortiq.serve.worker import Worker

if TYPE_CHECKING:
    import numpy as np

READER_THREADS = 2
"""Threads that render templates and tokenize texts."""
T = TypeVar("T")


class Service:
    """The served models and the handlers of all routes."""

    def __init__(self, models: ModelPool, options: ServeOptions, metrics: Metrics) -> None:
        self.models, self.options, self.metrics = models, options, metrics
        self.receipts = ReceiptMaker(options)
        path = options.request_log
        self.request_log = None if path is None else RequestLog(Path(path))
        self._readers = ThreadPoolExecutor(READER_THREADS, "reader")

    def start(self) -> None:
        """Start the models' workers; call this on the event loop."""
        self.models.start()

    def stop(self) -> None:
        """Stop every model's worker and cancel its requests."""
        self.models.stop()
        self._readers.shutdown(cancel_futures=True)
        if self.request_log is not None:
            self.request_log.close()

    async def hold(self, request: HttpRequest, name: str, *, adapters: bool = False) -> ServedModel:
        """Return a model by name, loaded, which the request holds until its response has ended.

        Parameters
        ----------
        adapters : whether the name may be that of a model with an adapter.

        Raises
        ------
        ApiError : it is not offered (404), not for this key (403), cannot be loaded, or too many
            requests wait for their models.
        ClientGone : the client disconnected while it waited for the model.
        """
        model = self.models.find(checked_base(self.models, name, key_of(request), adapters))
        request.state.facts["model"] = model.name
        served = await unless_gone(request.receive, self.models.acquire(model))
        request.state.held.append(partial(self.models.release, model))
        return served

    async def read(self, request: HttpRequest, work: Callable[[], T]) -> T:
        """Run blocking parsing on a reader thread; skip it if the client has disconnected by then.

        Raises
        ------
        ClientGone : the client disconnected first.
        ApiError : the request is nested too deeply to be parsed.
        """

        def begin() -> T:
            FETCHES.set(Fetches() if self.options.fetch_images else None)
            return work()

        run = asyncio.get_running_loop().run_in_executor
        reading = run(self._readers, copy_context().run, begin)

        async def wait() -> T:
            try:
                return await reading
            except RecursionError:
                raise too_deep() from None

        return await unless_gone(request.receive, wait())

    async def body(self, request: HttpRequest) -> Fields:
        """Read and parse a request's body.

        Raises
        ------
        ApiError : it is too large, too slow, or no JSON object.
        ClientGone : the client disconnected before all of it had arrived.
        """
        data = await body_bytes(request, self.options)
        return await self.read(request, lambda: read_body(data))

    async def chat(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/chat/completions`."""
        fields = await self.body(request)
        served = await self.hold(request, model_name(fields), adapters=True)
        tokens = self.options.answer_tokens
        parsed = await self.read(request, lambda: parse_chat(served, fields, tokens))
        return await self.answer(request, parsed, chat_writer)

    async def text(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/completions`."""
        fields = await self.body(request)
        served = await self.hold(request, model_name(fields), adapters=True)
        parsed = await self.read(request, lambda: parse_completion(served, fields))
        return await self.answer(request, parsed, text_writer)

    async def answer(
        self, request: HttpRequest, parsed: ParsedRequest, make: MakeWriter
    ) -> Response:
        """Compute a parsed request and write its answer in the form of an API."""
        worker = parsed.served.worker
        if parsed.params.prompt_logprobs is not None:
            scored = await self.compute(request, worker, parsed.prompt_steps())
            parsed = replace(parsed, prompt_tokens_scored=scored)
        job = GenerationJob(parsed.requests, priority=priority_of(request, parsed.params.priority))
        job.issue = self._issuer(parsed, job, request.url.path)
        writer = make(parsed, job)
        facts = request.state.facts

        def finish() -> None:
            worker.cancel(job)
            facts.update(job_facts(job))
            request.state.phases = job_phases(job)

        if parsed.params.silent:
            job.end_unsubmitted()
        else:
            worker.submit(job)
        if parsed.params.stream:
            try:
                accepted = await job.updates.get()
            except BaseException:
                finish()
                raise
            if accepted.error is not None:
                raise as_api_error(accepted.error) from accepted.error
            return AnswerStream(job, writer, self.options.write_seconds, finish)
        try:
            return await json_response(request, job, writer)
        finally:
            finish()

    def _issuer(self, parsed: ParsedRequest, job: GenerationJob, path: str) -> Callable[[int], Any]:
        """Log a request, and return what logs and certifies each choice when it has ended."""
        receipt, log = partial(self.receipts.issue, parsed, job), self.request_log
        if log is None or parsed.params.silent:
            return receipt
        number = log.asked(parsed, path)

        def issue(choice: int) -> Any:
            log.answered(number, choice, job.sequences[choice])
            return receipt(choice)

        return issue

    async def embed(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/embeddings`."""
        fields = await self.body(request)
        served = await self.hold(request, model_name(fields))
        parsed = await self.read(request, lambda: parse_embeddings(served, fields))
        return JSONResponse(parsed.response(await self.vectors(request, parsed)))

    async def vectors(self, request: HttpRequest, parsed: EmbeddingRequest) -> np.ndarray:
        """Compute the vectors of an embedding request."""
        request.state.facts["prompt_tokens"] = parsed.tokens
        return await self.compute(request, parsed.served.worker, parsed.steps())

    async def compute(
        self, request: HttpRequest, worker: Worker, steps: Generator[Any, None, None]
    ) -> Any:
        """Return the last item of steps that are computed between those of a model's engine."""
        job = worker.compute(steps)

        async def wait() -> None:
            await job

        try:
            await unless_gone(request.receive, wait())
        finally:
            job.cancel()
        return job.result()

    async def verify(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/verify`."""
        fields = await self.body(request)
        receipt = await self.read(request, lambda: verification.read_receipt(fields))
        name = verification.model_of_receipt(self.models, receipt)
        served = await self.hold(request, name)
        steps = verification.steps(served, receipt)
        verdict = await self.compute(request, served.worker, steps)
        return JSONResponse(verification.verdict_object(verdict))

    async def tokenize(self, request: HttpRequest) -> Response:
        """Handle `POST /tokenize`."""
        fields = await self.body(request)
        served = await self.hold(request, model_name(fields), adapters=True)
        return JSONResponse(await self.read(request, lambda: tokenize(served, fields)))

    async def detokenize(self, request: HttpRequest) -> Response:
        """Handle `POST /detokenize`."""
        fields = await self.body(request)
        served = await self.hold(request, model_name(fields), adapters=True)
        return JSONResponse(await self.read(request, lambda: detokenize(served, fields)))

    async def show_metrics(self, request: HttpRequest) -> Response:
        """Handle `GET /metrics`, for Prometheus."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def health(self, request: HttpRequest) -> Response:
        """Handle `GET /health`: 503 if a model's engine cannot compute any more."""
        served = [model.served for model in self.models.loaded()]
        dead = [one.name for one in served if one is not None and one.worker.failed]
        status = {"status": "engine stopped" if dead else "ok", "models": list(self.models)}
        return JSONResponse(status, 503 if dead else 200)


def key_of(request: HttpRequest) -> ApiKey | None:
    """Return the key that a request was sent with; None where none is needed."""
    return getattr(request.state, "key", None)


def priority_of(request: HttpRequest, asked: int | None) -> int:
    """Return the priority of a request: what it asks for, up to what its key may have."""
    key = key_of(request)
    if key is None or not key.name:
        return asked or 0
    return key.priority if asked is None else min(asked, key.priority)
