"""The ASGI application: its routes, and the error of a path that there is not."""

from __future__ import annotations

from difflib import get_close_matches

from starlette.routing import Route, Router
from starlette.types import Scope

from cortiq.errors import shown
from cortiq.serve.adapter_routes import ADAPTER_ENDPOINTS, AdapterRoutes
from cortiq.serve.audio_api import AUDIO_ENDPOINTS, AudioApi
from cortiq.serve.errors import ApiError
from cortiq.serve.middleware import RequestMiddleware
from cortiq.serve.model_routes import ModelRoutes
from cortiq.serve.ollama_api import OLLAMA_ENDPOINTS, OllamaApi
from cortiq.serve.other_apis import OTHER_ENDPOINTS, OtherApis
from cortiq.serve.pages import PAGE_FILES, page_endpoint
from cortiq.serve.score_api import SCORE_ENDPOINTS, ScoreApi
from cortiq.serve.server_info import INFO_ENDPOINTS, ServerInfo
from cortiq.serve.service import Service

ENDPOINTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models",
    "/v1/verify", "/tokenize", "/detokenize", *OTHER_ENDPOINTS, *OLLAMA_ENDPOINTS,
    *SCORE_ENDPOINTS, *AUDIO_ENDPOINTS, *INFO_ENDPOINTS, *ADAPTER_ENDPOINTS,
    "/health", "/metrics",
)  # fmt: skip
"""Endpoints listed in the error for unknown paths."""
COUNTED_PATHS = tuple(path.removeprefix("/v1") for path in ENDPOINTS)
"""Paths with a metrics label of their own, without `/v1`."""
NEAR, MOST_LETTERS = 0.6, 64
"""How alike an unknown path and one of ours are, and what is looked at of it: 1 is equal."""


def application(service: Service, bound: str = "") -> RequestMiddleware:
    """Return the ASGI application with its middleware; `bound` is the address it listens on."""
    posts = {"/chat/completions": service.chat, "/completions": service.text}
    posts["/embeddings"] = service.embed
    posts |= {
        "/tokenize": service.tokenize,
        "/detokenize": service.detokenize,
        "/verify": service.verify,
    }
    routes = [Route("/health", service.health), Route("/metrics", service.show_metrics)]
    routes += [Route(path, page_endpoint(path)) for path in PAGE_FILES]
    routes += [*OtherApis(service).routes(), *OllamaApi(service).routes()]
    routes += [*ModelRoutes(service).routes(), *ScoreApi(service).routes()]
    routes += [*AudioApi(service).routes()]
    routes += [*ServerInfo(service).routes(), *AdapterRoutes(service).routes()]
    for prefix in ("/v1", ""):
        routes += [Route(prefix + path, do, methods=["POST"]) for path, do in posts.items()]
    return RequestMiddleware(
        Router(routes, redirect_slashes=False, default=not_found),
        service.options,
        service.metrics.request,
        bound,
    )


async def not_found(scope: Scope, receive: object, send: object) -> None:
    """Raise the error (404) of an unknown path."""
    path, there = scope["path"], ", ".join(ENDPOINTS)
    near = get_close_matches(path.rstrip("/")[:MOST_LETTERS], ENDPOINTS, n=1, cutoff=NEAR)
    asked = f" Did you mean {near[0]}?" if near else ""
    message = f"There is nothing at {shown(path)}.{asked} There are {there}."
    raise ApiError(404, message, "not_found")
