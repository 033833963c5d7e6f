"""Starting and ending the server."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cortiq.errors import RequestError
from cortiq.serve.app import Service
from cortiq.serve.options import ServeOptions

KEEP_ALIVE_SECONDS = 15
BACKLOG = 2048
HEAD_BYTES = 64 << 10
"""Largest head of a request: its first line and headers."""


def protocol(seconds: float) -> type[H11Protocol]:
    """The HTTP protocol, with a limit on how long the head of a request may take.

    Without it a client that sends a byte now and then would hold its connection for ever.
    """

    class Patient(H11Protocol):
        """Closes connections that take too long to say what they want."""

        _limit: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)  # type: ignore[arg-type]
            self._wait()

        def data_received(self, data: bytes) -> None:
            if self._limit is None and self.conn.their_state is h11.IDLE:
                self._wait()
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._limit = self.loop.call_later(seconds, self._too_slow)

        def _stop_waiting(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

        def _too_slow(self) -> None:
            self._limit = None
            self.transport.close()

    return Patient


def listening(options: ServeOptions) -> socket.socket:
    """A socket at the options' address; RequestError where that cannot be."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((options.host, options.port))
        made.listen(BACKLOG)  # from now on clients wait instead of being refused
    except OSError as error:
        made.close()
        where = f"{options.host}:{options.port}"
        raise RequestError(f"cannot listen there: {error.strerror}", where=where) from None
    return made


def serve(
    app: ASGIApp,
    service: Service,
    options: ServeOptions,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT; then no more is accepted, and what is under way may end.

    Parameters
    ----------
    ready : called when requests are accepted.
    """

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        await receive()
        service.start()
        await send({"type": "lifespan.startup.complete"})
        ready()
        await receive()
        await asyncio.to_thread(service.stop)
        await send({"type": "lifespan.shutdown.complete"})

    config = uvicorn.Config(
        lifespan,
        http=protocol(options.header_seconds),
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=options.connections,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(options.drain_seconds),
        h11_max_incomplete_event_size=HEAD_BYTES,
        backlog=BACKLOG,
    )
    # Uvicorn raises again what it was ended with; that has been answered by then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    try:
        uvicorn.Server(config).run([listener])
    finally:
        service.stop()  # a second signal leaves at once; the models are closed next
