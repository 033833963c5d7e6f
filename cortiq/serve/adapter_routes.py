"""Loading and unloading adapters over HTTP; the paths and their fields are vLLM's."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cortiq.errors import CortiqError, shown
from cortiq.formats.hub_names import is_hub_name
from cortiq.serve.errors import ApiError, error_sentence, invalid
from cortiq.serve.fields import Fields
from cortiq.serve.served_model import ServedModel
from cortiq.serve.service import Service, key_of

ADAPTER_ENDPOINTS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


class AdapterRoutes:
    """Handlers of loading and unloading adapters, for administrators."""

    def __init__(self, service: Service) -> None:
        self.service, self.models = service, service.models

    async def load(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/load_lora_adapter`: `lora_name`, `lora_path`, perhaps `model`."""
        fields, served = await self._served(request)
        name, path = _required(fields, "lora_name"), _required(fields, "lora_path")
        fields.close()
        if is_hub_name(path) and not self.service.options.allow_pull:
            message = "'lora_path': the server fetches nothing; start it with --allow-pull."
            raise ApiError(403, message, "pull_not_allowed", "lora_path")

        def work() -> dict[str, Any]:
            try:
                return vars(served.model.load_adapter(name, path))
            except CortiqError as error:
                raise invalid(error_sentence(error), "lora_path", "invalid_adapter") from error

        return JSONResponse(await self.service.read(request, work))

    async def unload(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/unload_lora_adapter`: `lora_name`, perhaps `model`."""
        fields, served = await self._served(request)
        name = _required(fields, "lora_name")
        fields.close()
        if name not in served.model.adapters:
            message = f"{served.name} has no adapter {shown(name)}."
            raise ApiError(404, message, "model_not_found", "lora_name")
        served.model.unload_adapter(name)
        return JSONResponse({"name": name, "unloaded": True})

    async def _served(self, request: HttpRequest) -> tuple[Fields, ServedModel]:
        """Return the fields and the model of a request, of an administrator's key."""
        if (key := key_of(request)) is not None:
            key.check_admin()
        fields = await self.service.body(request)
        name = fields.text("model")
        if name is None and len(self.models) > 1:
            raise invalid(f"'model' is needed: one of {', '.join(self.models)}.", "model")
        return fields, await self.service.hold(request, name or next(iter(self.models)))

    def routes(self) -> list[Route]:
        """Return the routes, each with and without `/v1`."""
        handlers = dict(zip(ADAPTER_ENDPOINTS, (self.load, self.unload), strict=True))
        return [
            Route(prefix + path.removeprefix("/v1"), do, methods=["POST"])
            for path, do in handlers.items()
            for prefix in ("/v1", "")
        ]


def _required(fields: Fields, name: str) -> str:
    given = fields.text(name)
    if not given:
        raise fields.wrong(name, "a text")
    return given
