"""What every request goes through: who may ask, what comes of errors, one log line, one count."""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cortiq.errors import shown
from cortiq.serve.answers import ClientGone
from cortiq.serve.errors import ApiError, as_api_error, cut_off
from cortiq.serve.hosts import Authority, is_loopback, read_authority, read_origin
from cortiq.serve.logs import LOG
from cortiq.serve.options import ServeOptions

OPEN = ("/", "/page.js", "/page.css", "/health")
"""Paths that need no key: they tell nothing and compute nothing."""
GONE = 499
"""Status in logs and counts of a request whose client went away."""
MOST_NOTED = 80
"""Characters of a client's word that the log and errors have."""
Observe = Callable[[str, int, float, Mapping[str, Any]], None]


class Gate:
    """The outermost application.

    Parameters
    ----------
    observe : told of every request: path, status, seconds, and what its handler noted.
    bound : address that the server listens on, where the options have but a name for it.

    Attributes
    ----------
    running : the tasks of requests that are under way.
    """

    def __init__(
        self, inner: ASGIApp, options: ServeOptions, observe: Observe, bound: str = ""
    ) -> None:
        self.inner, self.options, self.observe = inner, options, observe
        self.local = is_loopback(bound or options.host)
        self.running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        try:
            await self._request(scope, receive, send)
        finally:
            self.running.discard(task)

    def cut(self) -> int:
        """Cut off what is under way, each with an error of ours; how many there were."""
        cut = list(self.running)
        for task in cut:
            task.cancel()
        return len(cut)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 0
        facts: dict[str, Any] = scope.setdefault("state", {}).setdefault("facts", {})
        headers = Headers(scope=scope)
        extra = self._extra_headers(headers)

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(raw=message["headers"])
                for name, value in extra.items():
                    sent[name] = value
            await send(message)

        try:
            await self._serve(scope, headers, receive, told)
        except ClientGone:
            status = GONE
        except asyncio.CancelledError:  # by `cut`; a task that ends well is no error of uvicorn's
            known = cut_off()
            facts.update(known.facts)
            if status == 0:
                await JSONResponse(known.as_dict(), known.status)(scope, receive, told)
        except Exception as error:
            known, response = error_response(error, scope)
            facts.update(known.facts)
            if status == 0:
                await response(scope, receive, told)
        finally:
            self._note(scope, status, time.perf_counter() - started, extra, facts)

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        host = self._host(headers)
        self._check_origin(headers, host)
        if scope["method"] == "OPTIONS" and "origin" in headers:
            await Response(status_code=204)(scope, receive, send)
            return
        self._check_host(host)
        scope["app"] = self  # with it, routing raises its errors, which are then answered as ours
        if scope["path"] not in OPEN:
            self._check_key(headers)
        await self.inner(scope, receive, send)

    def _host(self, headers: Headers) -> Authority | None:
        """Return whom the client asks, None where it does not say; ApiError (400) for nonsense."""
        given = headers.getlist("host")
        if not given:
            return None
        try:
            (host,) = given
            return read_authority(host)
        except ValueError:
            raise malformed("host", ", ".join(given)) from None

    def _check_host(self, host: Authority | None) -> None:
        """On this machine's own address only its own names: else any web page could have a name
        of its own point here, and ask.
        """
        name = host.host if host else ""
        if self.local and not is_loopback(name) and name != self.options.host.lower():
            message = (
                f"The host {shown(name)} is not this server, which listens on this machine "
                "only: ask at localhost or its address, or start it with --host."
            )
            raise ApiError(403, message, "wrong_host", noted={"host": name[:MOST_NOTED]})

    def _check_origin(self, headers: Headers, host: Authority | None) -> None:
        """Web pages of others may not call, unless they were named."""
        given = headers.getlist("origin")
        origin = given[0] if given else None
        if origin is None or (len(given) == 1 and origin in self.options.allow_origin):
            return
        try:
            (origin,) = given
            read = read_origin(origin)
        except ValueError:
            raise malformed("origin", ", ".join(given)) from None
        scheme, page = read or ("", None)
        if page is None or host is None or page.on(scheme) != host.on(scheme):
            message = (
                f"Pages of {shown(origin)} may not call: where they should, start the server with "
                "--allow-origin and that address."
            )
            noted = {"origin": origin[:MOST_NOTED], "hint": "--allow-origin lets its pages call"}
            raise ApiError(403, message, "wrong_origin", noted=noted)

    def _check_key(self, headers: Headers) -> None:
        key = self.options.api_key
        if key is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            message = "You didn't provide an API key: send 'Authorization: Bearer KEY'."
            raise ApiError(401, message, "invalid_api_key")
        if not hmac.compare_digest(given.strip().encode(), key.encode()):
            raise ApiError(401, "Incorrect API key provided.", "invalid_api_key")

    def _extra_headers(self, headers: Headers) -> dict[str, str]:
        extra = {"x-request-id": f"req_{uuid.uuid4().hex}", "x-content-type-options": "nosniff"}
        origin = headers.get("origin")
        if origin in self.options.allow_origin:
            extra |= {
                "access-control-allow-origin": origin or "",
                "access-control-allow-headers": "*, authorization",
                "access-control-allow-methods": "GET, POST",
                "vary": "origin",
            }
        return extra

    def _note(
        self,
        scope: Scope,
        status: int,
        seconds: float,
        extra: Mapping[str, str],
        facts: Mapping[str, Any],
    ) -> None:
        self.observe(scope["path"], status, seconds, facts)
        line = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 4),
            **facts,
            "request": extra["x-request-id"],
        }
        LOG.info("request", extra={"facts": line})


def malformed(header: str, value: str) -> ApiError:
    """Return the error of a header that decides who may ask and cannot be read."""
    message = f"The header {header.title()!r} is malformed: {shown(value)}."
    return ApiError(400, message, f"invalid_{header}", noted={header: value[:MOST_NOTED]})


def error_response(error: Exception, scope: Scope) -> tuple[ApiError, Response]:
    """An error as the log has it, and the answer to a request that cannot be served."""
    headers = {}
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        error = _of_routing(error, scope)
    known = as_api_error(error)
    if known.status >= 500:
        LOG.error("a request failed", exc_info=error)
    headers |= HEADERS.get(known.status, {})
    return known, JSONResponse(known.as_dict(), known.status, headers)


def _of_routing(error: HTTPException, scope: Scope) -> ApiError:
    """What Starlette has no more than a number for."""
    said = str(error.detail)
    if error.headers and "Allow" in error.headers:
        said = (
            f"{scope['path'][:MOST_NOTED]} takes {error.headers['Allow']}, not {scope['method']}."
        )
    return ApiError(error.status_code, said, NAMES.get(error.status_code))


HEADERS = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": "1"},
    408: {"connection": "close"},
    413: {"connection": "close"},
}
"""What answers of a status carry; who sends a bad body is not listened to any longer."""
NAMES = {404: "not_found", 405: "method_not_allowed"}
