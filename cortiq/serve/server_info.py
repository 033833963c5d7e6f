"""`/props` and `/slots`: what llama.cpp's clients ask a server about itself."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cortiq.engine.sequence import Sequence
from cortiq.serve.offered_model import OfferedModel
from cortiq.serve.served_model import ServedModel
from cortiq.serve.service import Service, key_of

INFO_ENDPOINTS = ("/props", "/slots")


class ServerInfo:
    """Handlers of the two paths; `?model=NAME` says which model is meant, else the first."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def props(self, request: HttpRequest) -> Response:
        """Handle `GET /props`."""
        import cortiq

        model = self._model(request)
        known = {} if model.served is None else _loaded_props(model.served)
        slots = 0 if model.served is None else model.served.worker.engine.limits.sequences
        about = {"model_alias": model.name, "state": model.state, "total_slots": slots,
                 "build_info": f"cortiq {cortiq.__version__}"}  # fmt: skip
        return JSONResponse({**about, **known})

    async def slots(self, request: HttpRequest) -> Response:
        """Handle `GET /slots`: a place for each sequence that may run; never any text."""
        model = self._model(request)
        if model.served is None:
            return JSONResponse([])
        engine = model.served.worker.engine
        running, context = list(engine.running), model.served.model.context
        made: list[dict[str, Any]] = [_slot(sequence, context) for sequence in running]
        free = range(len(made), engine.limits.sequences)
        made += [{"n_ctx": context, "is_processing": False} for _ in free]
        return JSONResponse([{"id": number, **slot} for number, slot in enumerate(made)])

    def _model(self, request: HttpRequest) -> OfferedModel:
        models = self.service.models
        loaded = models.loaded()
        usual = loaded[0].name if loaded else next(iter(models))
        name = request.query_params.get("model", usual)
        if (key := key_of(request)) is not None:
            key.check_model(name)
        return models.offered(name)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/props", self.props), Route("/slots", self.slots)]


def _loaded_props(served: ServedModel) -> dict[str, Any]:
    model, tokenizer = served.model, served.model.tokenizer
    settings = {"n_ctx": model.context, "params": {**served.usual.values}}
    media = {"vision": "image", "audio": "audio"}
    return {
        "default_generation_settings": settings,
        "chat_template": tokenizer.chat_template() or "",
        "bos_token": _token(served, tokenizer.bos_id),
        "eos_token": _token(served, tokenizer.eos_id),
        "modalities": {name: model.has_medium(medium) for name, medium in media.items()},
        "system_fingerprint": served.fingerprint,
    }  # fmt: skip


def _token(served: ServedModel, token: int | None) -> str:
    if token is None or served.model.tokenizer.absent:
        return ""
    return served.model.tokenizer.token_bytes(token).decode("utf-8", "replace")


def _slot(sequence: Sequence, context: int) -> dict[str, Any]:
    made = sequence.generated  # read once: the engine goes on
    return {
        "id_task": sequence.number, "n_ctx": context, "is_processing": True,
        "speculative": sequence.drafting is not None, "priority": sequence.priority,
        "n_prompt_tokens": len(sequence.request.prompt), "n_past": sequence.fed,
        "next_token": {"n_decoded": made, "n_remain": sequence.request.max_tokens - made},
    }  # fmt: skip
