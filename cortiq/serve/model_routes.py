"""`/v1/models`: what the server offers, and loading and unloading it by hand."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cortiq.serve.adapter_names import adapter_entries
from cortiq.serve.http_responses import unless_gone
from cortiq.serve.service import Service, key_of


class ModelRoutes:
    """Handlers of `/v1/models`."""

    def __init__(self, service: Service) -> None:
        self.service, self.models = service, service.models

    async def list_models(self, request: HttpRequest) -> Response:
        """Handle `GET /v1/models`."""
        data = [model.as_dict() for model in self.models.values()]
        data += [entry for model in self.models.values() for entry in adapter_entries(model)]
        names = list(self.models)
        page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        return JSONResponse({"object": "list", "data": data, **page})

    async def one_model(self, request: HttpRequest) -> Response:
        """Handle `GET /v1/models/NAME`."""
        name = request.path_params["name"]
        for model in self.models.values():
            for entry in adapter_entries(model):
                if entry["id"] == name:
                    return JSONResponse(entry)
        return JSONResponse(self.models.offered(name).as_dict())

    async def load(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/models/NAME/load`: answer when the model is loaded."""
        self._check(request)
        model = self.models.find(request.path_params["name"])
        await unless_gone(request.receive, self.models.load(model))
        return JSONResponse(model.as_dict())

    async def unload(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/models/NAME/unload`: answer when its requests have ended and it has."""
        self._check(request)
        model = self.models.offered(request.path_params["name"])
        await unless_gone(request.receive, self.models.unload(model))
        return JSONResponse(model.as_dict())

    def _check(self, request: HttpRequest) -> None:
        """Refuse keys that are not an administrator's, or not for this model."""
        if (key := key_of(request)) is not None:
            key.check_admin()
            key.check_model(request.path_params["name"])

    def routes(self) -> list[Route]:
        """Return the routes, each with and without `/v1`."""
        made = []
        for prefix in ("/v1/models", "/models"):
            path = prefix + "/{name:path}"
            made += [
                Route(prefix, self.list_models, methods=["GET"]),
                Route(f"{path}/load", self.load, methods=["POST"]),
                Route(f"{path}/unload", self.unload, methods=["POST"]),
                Route(path, self.one_model, methods=["GET"]),
            ]
        return made
