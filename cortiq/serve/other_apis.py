"""Handlers of the APIs beside OpenAI's completions: Responses and Messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cortiq.serve import messages_request, responses_request
from cortiq.serve.completion_params import model_name
from cortiq.serve.fields import Fields
from cortiq.serve.http_responses import MakeWriter
from cortiq.serve.messages_writer import MessagesWriter
from cortiq.serve.parsed_request import ParsedRequest, parse_chat
from cortiq.serve.responses_writer import ResponsesWriter
from cortiq.serve.service import Service

OTHER_ENDPOINTS = (
    "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
)  # fmt: skip


class OtherApis:
    """Translates requests to those of OpenAI's completions, and answers back."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def responses(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/responses`."""
        fields = await self.service.body(request)
        make = partial(ResponsesWriter, fields=fields)
        return await self._chat(request, fields, responses_request.as_chat, make)

    async def messages(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/messages`."""
        fields = await self.service.body(request)
        return await self._chat(request, fields, messages_request.as_chat, MessagesWriter)

    async def count_tokens(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/messages/count_tokens`."""
        fields = await self.service.body(request)
        translate = partial(messages_request.as_chat, counted=True)
        parsed = await self._parsed(request, fields, translate)
        return JSONResponse({"input_tokens": parsed.prompt_tokens})

    async def _chat(
        self,
        request: HttpRequest,
        fields: Fields,
        translate: Callable[[Fields], dict[str, Any]],
        make: MakeWriter,
    ) -> Response:
        parsed = await self._parsed(request, fields, translate)
        return await self.service.answer(request, parsed, make)

    async def _parsed(
        self,
        request: HttpRequest,
        fields: Fields,
        translate: Callable[[Fields], dict[str, Any]],
    ) -> ParsedRequest:
        served = await self.service.hold(request, model_name(fields), adapters=True)
        tokens = self.service.options.answer_tokens

        def parse() -> ParsedRequest:
            return parse_chat(served, Fields(translate(fields)), tokens)

        return await self.service.read(request, parse)

    def routes(self) -> list[Route]:
        """Return the routes, each with and without `/v1`."""
        posts = {}
        for prefix in ("/v1", ""):
            posts[f"{prefix}/responses"] = self.responses
            posts[f"{prefix}/messages"] = self.messages
            posts[f"{prefix}/messages/count_tokens"] = self.count_tokens
        return [Route(path, do, methods=["POST"]) for path, do in posts.items()]
