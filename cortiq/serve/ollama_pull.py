"""Ollama's `/api/pull`: fetching a model, where the operator lets requests do that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from cortiq.errors import CortiqError
from cortiq.formats import fetch
from cortiq.serve.completion_params import model_name
from cortiq.serve.errors import ApiError, as_api_error, error_sentence
from cortiq.serve.fields import Fields
from cortiq.serve.service import Service, key_of

LINES = "application/x-ndjson"
Status = dict[str, Any]


async def pull(service: Service, request: HttpRequest, fields: Fields) -> Response:
    """Fetch the model of a request, and offer it from then on.

    Raises
    ------
    ApiError : the server does not fetch models (403), or there is none of this name (404).
    """
    name, stream = model_name(fields), fields.flag("stream", True)
    fields.flag("insecure")
    fields.close()
    if (key := key_of(request)) is not None:
        key.check_admin()
        key.check_model(name)
    if not service.options.allow_pull:
        message = "This server fetches no models: its operator can start it with --allow-pull."
        raise ApiError(403, message, "pull_not_allowed", "model")
    service.models.find(name)
    if stream:
        return StreamingResponse(_lines(name), media_type=LINES)
    try:
        async for status in _fetch(name):
            last = status
    except CortiqError as error:
        raise as_api_error(error) from error
    return JSONResponse(last)


async def _lines(name: str) -> AsyncIterator[str]:
    try:
        async for status in _fetch(name):
            yield json.dumps(status) + "\n"
    except CortiqError as error:
        yield json.dumps({"error": error_sentence(error)}) + "\n"


async def _fetch(name: str) -> AsyncIterator[Status]:
    """Yield how far the fetching of a model is, and `success` at last; raise its error."""
    loop, news = asyncio.get_running_loop(), asyncio.Queue[Status | None]()

    def progress(what: str, done: int, total: int) -> None:
        status = {"status": f"pulling {what}", "completed": done, "total": total}
        loop.call_soon_threadsafe(news.put_nowait, status)

    async def work() -> None:
        try:
            await asyncio.to_thread(fetch.pull, name, progress=progress)
        finally:
            news.put_nowait(None)

    fetching = asyncio.create_task(work())
    yield {"status": "pulling manifest"}
    while (status := await news.get()) is not None:
        yield status
    await fetching
    yield {"status": "success"}
