"""Middleware of every request: host, origin and key checks, error responses, logging, metrics."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cortiq.errors import shown
from cortiq.serve.api_keys import KeyRing
from cortiq.serve.authority import Authority, is_loopback, read_authority, read_origin
from cortiq.serve.errors import ApiError, as_api_error, error_body, shutting_down
from cortiq.serve.http_responses import ClientGone
from cortiq.serve.ignored import CURRENT, HEADER, IgnoredParts
from cortiq.serve.key_limits import KeyLimits
from cortiq.serve.logs import LOG
from cortiq.serve.options import ServeOptions
from cortiq.serve.traces import RequestTraces

PUBLIC_PATHS = ("/", "/page.js", "/page.css", "/health")
"""Paths that need no API key: they reveal nothing and compute nothing."""
CLIENT_GONE = 499
"""Status in logs and metrics of a request whose client disconnected."""
MAX_LOGGED = 80
"""Characters of a client-supplied value that logs and errors show."""
OWN_NAMES = ("", "localhost", socket.gethostname())
"""Names of this machine that requests from elsewhere may be sent to; none is of old clients."""
Observe = Callable[[str, int, float, Mapping[str, Any]], None]


class RequestMiddleware:
    """Checks, logs and counts every request; the outermost ASGI application.

    Parameters
    ----------
    observe : called after every request: path, status, seconds, and the facts of its log line.
    bound : address that the server listens on, if the options only have a name for it.
    keys : of the clients; those of the options if None.

    Attributes
    ----------
    running : the tasks of running requests.
    """

    def __init__(
        self,
        inner: ASGIApp,
        options: ServeOptions,
        observe: Observe,
        bound: str = "",
        keys: KeyRing | None = None,
    ) -> None:
        self.inner, self.options, self.observe = inner, options, observe
        self.local = is_loopback(bound or options.host)
        names = (options.host, *options.allow_host, *(() if self.local else OWN_NAMES))
        self._names = frozenset(name.lower() for name in names)
        self.running: set[asyncio.Task[Any]] = set()
        self.keys = KeyRing(options) if keys is None else keys
        self._limits, self._traces = KeyLimits(), RequestTraces()

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

    def cancel_running(self) -> int:
        """Cancel running requests, each with error 503; return how many there were."""
        running = list(self.running)
        for task in running:
            task.cancel()
        return len(running)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 0
        state = scope.setdefault("state", {})
        facts: dict[str, Any] = state.setdefault("facts", {})
        held: list[Callable[[], None]] = state.setdefault("held", [])
        ignored = IgnoredParts(self.options.ignore_unknown_fields)
        ignored_before = CURRENT.set(ignored)
        headers = Headers(scope=scope)
        extra = self._extra_headers(headers)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(raw=message["headers"])
                for name, value in extra.items():
                    sent[name] = value
                if ignored.names:
                    sent[HEADER] = facts["ignored"] = ignored.header
            await send(message)

        try:
            await self._serve(scope, headers, receive, send_with_headers)
        except ClientGone:
            status = CLIENT_GONE
        except (
            asyncio.CancelledError
        ):  # by `cancel_running`; returning keeps uvicorn from logging an error
            known = shutting_down()
            facts.update(known.facts)
            if status == 0:
                body = error_body(known, scope["path"])
                await JSONResponse(body, known.status)(scope, receive, send_with_headers)
        except Exception as error:
            known, response = error_response(error, scope)
            facts.update(known.facts)
            if status == 0:
                await response(scope, receive, send_with_headers)
        finally:
            CURRENT.reset(ignored_before)
            for release in held:  # models that the response needed until now
                release()
            self._note(scope, headers, status, time.perf_counter() - started, extra, facts)

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        host = self._host(headers)
        self._check_origin(headers, host)
        if scope["method"] == "OPTIONS" and "origin" in headers:
            await Response(status_code=204)(scope, receive, send)
            return
        self._check_host(host)
        scope["app"] = (
            self  # makes Starlette raise routing errors, which we then answer in our format
        )
        if scope["path"] not in PUBLIC_PATHS:
            self._admit(scope, headers)
        await self.inner(scope, receive, send)

    def _host(self, headers: Headers) -> Authority | None:
        """Return the `Host` header, None without one; raise ApiError (400) if it is malformed."""
        given = headers.getlist("host")
        if not given:
            return None
        try:
            (host,) = given
            return read_authority(host)
        except ValueError:
            raise malformed("host", ", ".join(given)) from None

    def _check_host(self, host: Authority | None) -> None:
        """Accept only names of this machine, against DNS rebinding by web pages.

        Where keys are needed pages have none, so any name will do unless some are allowed.
        """
        name, options = host.host if host else "", self.options
        if name in self._names or (is_loopback(name) if self.local else _is_address(name)):
            return
        if self.local or options.allow_host or self.keys.open:
            message = (
                f"The host {shown(name)} is not this server: ask at localhost or its address, or "
                "start it with --allow-host and that name."
            )
            raise ApiError(403, message, "wrong_host", logged={"host": name[:MAX_LOGGED]})

    def _check_origin(self, headers: Headers, host: Authority | None) -> None:
        """Refuse web pages of other origins, unless they are allowed."""
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
                f"Pages of {shown(origin)} may not call this server: start it with --allow-origin "
                "and that address to allow them."
            )
            logged = {"origin": origin[:MAX_LOGGED], "hint": "--allow-origin allows its pages"}
            raise ApiError(403, message, "wrong_origin", logged=logged)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Check a request's key and the key's limits."""
        state = scope["state"]
        key = state["key"] = self.keys.check(headers)
        if key is None:
            return
        facts = state["facts"]
        if key.name:
            facts["key"] = key.name
        if scope["method"] == "POST":
            state["held"].append(partial(self._limits.enter(key), facts))

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
        headers: Headers,
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
        self._traces.record(line, headers, scope["state"].get("phases", ()))


def _is_address(name: str) -> bool:
    """Return whether a host is an IP address, which no web page has as its own by name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def malformed(header: str, value: str) -> ApiError:
    """Return the error (400) of a malformed `Host` or `Origin` header."""
    message = f"The header {header.title()!r} is malformed: {shown(value)}."
    return ApiError(400, message, f"invalid_{header}", logged={header: value[:MAX_LOGGED]})


def error_response(error: Exception, scope: Scope) -> tuple[ApiError, Response]:
    """Return an error for the log, and the response of a request that failed."""
    headers = {}
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        error = _routing_error(error, scope)
    known = as_api_error(error)
    if known.status >= 500:
        LOG.error("a request failed", exc_info=error)
    headers |= HEADERS.get(known.status, {})
    if known.retry_after is not None:
        headers["retry-after"] = str(known.retry_after)
    return known, JSONResponse(error_body(known, scope["path"]), known.status, headers)


def _routing_error(error: HTTPException, scope: Scope) -> ApiError:
    """Return the error of a Starlette exception, which has no more than a status."""
    said = str(error.detail)
    if error.headers and "Allow" in error.headers:
        said = (
            f"{scope['path'][:MAX_LOGGED]} takes {error.headers['Allow']}, not {scope['method']}."
        )
    return ApiError(error.status_code, said, ERROR_CODES.get(error.status_code))


HEADERS = {
    401: {"www-authenticate": "Bearer"},
    408: {"connection": "close"},
    413: {"connection": "close"},
}
"""Headers by status; a connection that sent a bad body is closed."""
ERROR_CODES = {404: "not_found", 405: "method_not_allowed"}
