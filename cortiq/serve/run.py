"""Running the server and shutting it down."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cortiq.errors import RequestError
from cortiq.serve.http_responses import ClientGone, disconnected
from cortiq.serve.logs import LOG
from cortiq.serve.middleware import RequestMiddleware
from cortiq.serve.options import ServeOptions
from cortiq.serve.service import Service

KEEP_ALIVE_SECONDS = 15
BACKLOG = 2048
MAX_HEAD_BYTES = 64 << 10
"""Largest head of a request: its first line and headers."""
POLL_SECONDS = 0.05
"""Interval of checks during shutdown."""
CLOSE_SECONDS = 2.0
"""Time clients have to read the last bytes sent to them."""


def h11_protocol(seconds: float) -> type[H11Protocol]:
    """Return an HTTP protocol class with a timeout on the head of a request.

    Without it a client that sends a byte now and then would hold its connection forever.
    """

    class HeadTimeout(H11Protocol):
        """Closes connections that take too long to send a request's head."""

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

    return HeadTimeout


class Server(uvicorn.Server):
    """Shuts down gracefully: running requests may finish until a deadline or a second Ctrl-C.

    Parameters
    ----------
    seconds : time that running requests have after the first signal.

    Attributes
    ----------
    interrupted : number of responses that shutdown interrupted.
    """

    def __init__(
        self, config: uvicorn.Config, middleware: RequestMiddleware, seconds: float
    ) -> None:
        super().__init__(config)
        self.interrupted = 0
        self._middleware, self._seconds, self._interrupt_now = middleware, seconds, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal; a second Ctrl-C cancels running requests."""
        if self.should_exit and sig == signal.SIGINT:
            self._interrupt_now = True
            return
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests and return when none is running."""
        interrupting = asyncio.ensure_future(self._interrupt_after_deadline())
        try:
            await super().shutdown(sockets)
        finally:
            interrupting.cancel()

    async def _interrupt_after_deadline(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds
        await asyncio.sleep(POLL_SECONDS)  # lets requests that just arrived reach the middleware
        if self._middleware.running and self._seconds:
            left = count_responses(len(self._middleware.running))
            LOG.info(f"waiting up to {self._seconds:g} s for {left}; a second signal ends at once")
        while self._middleware.running and loop.time() < until and not self._interrupt_now:
            await asyncio.sleep(POLL_SECONDS)
        self.interrupted = self._middleware.cancel_running()
        if self.interrupted:
            LOG.warning(f"shutdown interrupted {count_responses(self.interrupted)}")
        until = loop.time() + CLOSE_SECONDS
        while self.server_state.connections and loop.time() < until:
            await asyncio.sleep(POLL_SECONDS)
        for connection in list(self.server_state.connections):  # their clients do not read
            if connection.transport is not None:
                connection.transport.abort()


def count_responses(count: int) -> str:
    """Return a number of responses for the log."""
    return "1 response" if count == 1 else f"{count} responses"


async def serve_connected(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request whose connection may be closed because of what follows it.

    A client that sends garbage after a request gets uvicorn's 400 at once, and h11 then refuses the
    running response. The client is gone: that is no error of the server.
    """

    async def guarded_send(message: Message) -> None:
        try:
            await send(message)
        except h11.LocalProtocolError:
            raise ClientGone from None

    try:
        await app(scope, receive, guarded_send)
    except ClientGone:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await disconnected(receive)


def on_hangup(reload: Callable[[], None]) -> None:
    """Read files again on SIGHUP, where there is such a signal; call this on the event loop."""
    with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def bind_socket(options: ServeOptions) -> socket.socket:
    """Return a socket listening at the options' address; raise RequestError if that fails."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((options.host, options.port))
        made.listen(BACKLOG)  # from now on clients queue instead of being refused
    except OSError as error:
        made.close()
        where = f"{options.host}:{options.port}"
        what = f"cannot listen there: {error.strerror}"
        hint = "another port: --port N" if error.errno == errno.EADDRINUSE else None
        raise RequestError(what, where=where, hint=hint) from None
    return made


def serve(
    app: RequestMiddleware,
    service: Service,
    options: ServeOptions,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT; then accept no more and let running requests finish.

    Return how many responses were interrupted.

    Parameters
    ----------
    ready : called as soon as requests are accepted.
    """

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await serve_connected(app, scope, receive, send)
            return
        await receive()
        service.start()
        on_hangup(app.keys.reload)
        await send({"type": "lifespan.startup.complete"})
        ready()
        await receive()
        await asyncio.to_thread(service.stop)
        await send({"type": "lifespan.shutdown.complete"})

    config = uvicorn.Config(
        lifespan,
        http=h11_protocol(options.header_seconds),
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=options.connections,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        backlog=BACKLOG,
    )
    # Uvicorn re-raises the signal that ended it, which has been handled by then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    server = Server(config, app, options.drain_seconds)
    try:
        server.run([listener])
    finally:
        service.stop()  # also after a failed loop; the models are closed next
    return server.interrupted
