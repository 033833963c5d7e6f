"""Handlers of the APIs beside OpenAI's completions: Responses, Messages, and Ollama's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cortiq.serve import messages_request, ollama_request, responses_request
from cortiq.serve.completion_params import model_name
from cortiq.serve.embeddings import parse_embeddings
from cortiq.serve.fields import Fields
from cortiq.serve.http_responses import MakeWriter
from cortiq.serve.messages_writer import MessagesWriter
from cortiq.serve.ollama_writer import (
    OllamaWriter,
    loaded_object,
    running_object,
    show_object,
    tag_object,
)
from cortiq.serve.parsed_request import ParsedRequest, parse_chat, parse_completion
from cortiq.serve.responses_writer import ResponsesWriter
from cortiq.serve.service import Service

OTHER_ENDPOINTS = (
    "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/api/chat", "/api/generate", "/api/embed", "/api/tags", "/api/show", "/api/ps",
)  # fmt: skip
LATEST = ":latest"
"""Tag that Ollama's clients add to names."""


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
        served, tokens = self.service.find(model_name(fields)), self.service.options.answer_tokens

        def parse() -> ParsedRequest:
            return parse_chat(served, Fields(translate(fields)), tokens)

        return await self.service.read(request, parse)

    async def ollama_chat(self, request: HttpRequest) -> Response:
        """Handle `POST /api/chat`."""
        fields = await self._ollama_body(request)
        made = ollama_request.chat_request(fields)
        if not made["messages"]:
            return JSONResponse(loaded_object(fields.asked, chat=True))
        return await self._ollama(request, fields.asked, made, chat=True)

    async def ollama_generate(self, request: HttpRequest) -> Response:
        """Handle `POST /api/generate`."""
        fields = await self._ollama_body(request)
        served = self.service.find(model_name(fields))
        chats = served.model.tokenizer.chat_template() is not None
        made = ollama_request.generate_request(fields, chats=chats)
        if not fields.values.get("prompt"):
            return JSONResponse(loaded_object(fields.asked, chat=False))
        return await self._ollama(request, fields.asked, made, chat=False)

    async def _ollama(
        self, request: HttpRequest, asked: str, made: dict[str, Any], *, chat: bool
    ) -> Response:
        served, tokens = self.service.find(made["model"]), self.service.options.answer_tokens

        def parse() -> ParsedRequest:
            if "messages" in made:
                return parse_chat(served, Fields(made), tokens)
            return parse_completion(served, Fields({"max_tokens": tokens, **made}))

        parsed = await self.service.read(request, parse)
        make = partial(OllamaWriter, asked=asked, chat=chat)
        return await self.service.answer(request, parsed, make)

    async def ollama_embed(self, request: HttpRequest) -> Response:
        """Handle `POST /api/embed`."""
        fields = await self._ollama_body(request)
        made = ollama_request.embed_request(fields)
        served = self.service.find(model_name(fields))
        parsed = await self.service.read(request, lambda: parse_embeddings(served, Fields(made)))
        vectors = await self.service.vectors(request, parsed)
        count = sum(map(len, parsed.ids))
        answer = {"model": fields.asked, "embeddings": vectors.tolist(), "total_duration": 0}
        return JSONResponse({**answer, "load_duration": 0, "prompt_eval_count": count})

    async def tags(self, request: HttpRequest) -> Response:
        """Handle `GET /api/tags`."""
        models = self.service.models.values()
        return JSONResponse({"models": [tag_object(served) for served in models]})

    async def running(self, request: HttpRequest) -> Response:
        """Handle `GET /api/ps`: every model stays loaded."""
        models = self.service.models.values()
        return JSONResponse({"models": [running_object(served) for served in models]})

    async def show(self, request: HttpRequest) -> Response:
        """Handle `POST /api/show`."""
        fields = await self._ollama_body(request)
        fields.flag("verbose")
        fields.note_read("model")
        fields.close()
        return JSONResponse(show_object(self.service.find(model_name(fields))))

    async def version(self, request: HttpRequest) -> Response:
        """Handle `GET /api/version`."""
        import cortiq

        return JSONResponse({"version": cortiq.__version__})

    async def _ollama_body(self, request: HttpRequest) -> OllamaFields:
        return OllamaFields((await self.service.body(request)).values, self.service.models)

    def routes(self) -> list[Route]:
        """Return the routes; OpenAI's and Anthropic's work with and without `/v1`."""
        posts = {
            "/api/chat": self.ollama_chat, "/api/generate": self.ollama_generate,
            "/api/embed": self.ollama_embed, "/api/show": self.show,
        }  # fmt: skip
        gets = {"/api/tags": self.tags, "/api/ps": self.running, "/api/version": self.version}
        for prefix in ("/v1", ""):
            posts[f"{prefix}/responses"] = self.responses
            posts[f"{prefix}/messages"] = self.messages
            posts[f"{prefix}/messages/count_tokens"] = self.count_tokens
        routes = [Route(path, do, methods=["POST"]) for path, do in posts.items()]
        return routes + [Route(path, do, methods=["GET"]) for path, do in gets.items()]


class OllamaFields(Fields):
    """The fields of a request to Ollama's API, its model named as the server names it.

    Attributes
    ----------
    asked : the name that the request has, to which the answer refers: with or without a tag.
    """

    def __init__(self, values: Any, models: Any) -> None:
        super().__init__(values)
        name = self.values.setdefault("model", self.values.pop("name", ""))
        self.asked = name
        if isinstance(name, str) and name not in models:
            self.values["model"] = name.removesuffix(LATEST)
