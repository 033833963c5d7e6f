"""Handlers of Ollama's API."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cortiq.serve import ollama_request
from cortiq.serve.completion_params import model_name
from cortiq.serve.embeddings import parse_embeddings
from cortiq.serve.fields import Fields
from cortiq.serve.ollama_models import running_object, show_object, unloaded_tag
from cortiq.serve.ollama_pull import pull
from cortiq.serve.ollama_writer import OllamaWriter, loaded_object
from cortiq.serve.parsed_request import ParsedRequest, parse_chat, parse_completion
from cortiq.serve.served_model import ServedModel
from cortiq.serve.service import Service

OLLAMA_ENDPOINTS = (
    "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/tags", "/api/show",
    "/api/ps", "/api/pull",
)  # fmt: skip
LATEST = ":latest"
"""Tag that Ollama's clients add to names."""


class OllamaApi:
    """Translates requests to chat and text completions, and answers back."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def chat(self, request: HttpRequest) -> Response:
        """Handle `POST /api/chat`."""
        fields = await self._ollama_body(request)
        made = ollama_request.chat_request(fields)
        if not made["messages"]:
            await self._held(request, fields)
            return JSONResponse(loaded_object(fields.asked, chat=True))
        return await self._ollama(request, fields, made, chat=True)

    async def generate(self, request: HttpRequest) -> Response:
        """Handle `POST /api/generate`."""
        fields = await self._ollama_body(request)
        served = await self._held(request, fields, adapters=True)
        chats = served.model.tokenizer.chat_template() is not None
        made = ollama_request.generate_request(fields, chats=chats)
        if not fields.values.get("prompt"):
            return JSONResponse(loaded_object(fields.asked, chat=False))
        return await self._ollama(request, fields, made, chat=False)

    async def _ollama(
        self, request: HttpRequest, fields: OllamaFields, made: dict[str, Any], *, chat: bool
    ) -> Response:
        served = await self._held(request, fields, adapters=True)
        made["model"] = model_name(fields)
        tokens = self.service.options.answer_tokens

        def parse() -> ParsedRequest:
            if "messages" in made:
                return parse_chat(served, Fields(made), tokens)
            return parse_completion(served, Fields({"max_tokens": tokens, **made}))

        parsed = await self.service.read(request, parse)
        make = partial(OllamaWriter, asked=fields.asked, chat=chat)
        return await self.service.answer(request, parsed, make)

    async def embed(self, request: HttpRequest) -> Response:
        """Handle `POST /api/embed`."""
        fields = await self._ollama_body(request)
        vectors, count = await self._vectors(request, fields, ollama_request.embed_request(fields))
        answer = {"model": fields.asked, "embeddings": vectors.tolist(), "total_duration": 0}
        return JSONResponse({**answer, "load_duration": 0, "prompt_eval_count": count})

    async def embeddings(self, request: HttpRequest) -> Response:
        """Handle `POST /api/embeddings`, the older form: one text, not normalised."""
        fields = await self._ollama_body(request)
        made = ollama_request.older_embed_request(fields)
        (vector,), _ = await self._vectors(request, fields, made)
        return JSONResponse({"embedding": vector.tolist()})

    async def _vectors(
        self, request: HttpRequest, fields: OllamaFields, made: dict[str, Any]
    ) -> tuple[np.ndarray, int]:
        """Return embeddings, and the tokens of their texts."""
        served = await self._held(request, fields)
        parsed = await self.service.read(request, lambda: parse_embeddings(served, Fields(made)))
        return await self.service.vectors(request, parsed), parsed.tokens

    async def tags(self, request: HttpRequest) -> Response:
        """Handle `GET /api/tags`."""
        models = self.service.models.values()
        return JSONResponse({"models": [model.tag or unloaded_tag(model) for model in models]})

    async def running(self, request: HttpRequest) -> Response:
        """Handle `GET /api/ps`: the models in memory."""
        models = self.service.models.loaded()
        return JSONResponse({"models": [running_object(model) for model in models]})

    async def show(self, request: HttpRequest) -> Response:
        """Handle `POST /api/show`."""
        fields = await self._ollama_body(request)
        fields.flag("verbose")
        fields.note_read("model")
        fields.close()
        return JSONResponse(show_object(await self._held(request, fields)))

    async def _held(
        self, request: HttpRequest, fields: OllamaFields, adapters: bool = False
    ) -> ServedModel:
        """Return the loaded model of a request, and note how long it is to stay."""
        keep = ollama_request.keep_seconds(fields)
        served = await self.service.hold(request, model_name(fields), adapters=adapters)
        if keep is not ollama_request.UNSAID:
            self.service.models.keep(self.service.models[served.name], keep)
        return served

    async def pull(self, request: HttpRequest) -> Response:
        """Handle `POST /api/pull`."""
        return await pull(self.service, request, await self._ollama_body(request))

    async def version(self, request: HttpRequest) -> Response:
        """Handle `GET /api/version`."""
        import cortiq

        return JSONResponse({"version": cortiq.__version__})

    async def _ollama_body(self, request: HttpRequest) -> OllamaFields:
        return OllamaFields((await self.service.body(request)).values, self.service.models)

    def routes(self) -> list[Route]:
        """Return the routes."""
        posts = {
            "/api/chat": self.chat, "/api/generate": self.generate,
            "/api/embed": self.embed, "/api/embeddings": self.embeddings,
            "/api/show": self.show, "/api/pull": self.pull,
        }  # fmt: skip
        gets = {"/api/tags": self.tags, "/api/ps": self.running, "/api/version": self.version}
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
