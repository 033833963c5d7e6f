"""Starting and ending the server."""

from __future__ import annotations

import asyncio
import contextlib
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
from cortiq.serve.answers import ClientGone, gone
from cortiq.serve.app import Service
from cortiq.serve.gate import Gate
from cortiq.serve.logs import LOG
from cortiq.serve.options import ServeOptions

KEEP_ALIVE_SECONDS = 15
BACKLOG = 2048
HEAD_BYTES = 64 << 10
"""Largest head of a request: its first line and headers."""
TICK_SECONDS = 0.05
"""How often the end looks at what is left."""
LEAVE_SECONDS = 2.0
"""How long clients may take to read what was sent them last."""


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


class Server(uvicorn.Server):
    """Ends in order: answers under way may end, until it is time or somebody is impatient.

    Parameters
    ----------
    seconds : that answers under way have after the first signal.

    Attributes
    ----------
    cut : answers that were cut off.
    """

    def __init__(self, config: uvicorn.Config, gate: Gate, seconds: float) -> None:
        super().__init__(config)
        self.cut = 0
        self._gate, self._seconds, self._impatient = gate, seconds, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; a second Ctrl-C cuts off what is under way."""
        if self.should_exit and sig == signal.SIGINT:
            self._impatient = True
            return
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, and end when nothing is under way."""
        cutting = asyncio.ensure_future(self._cut_in_time())
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    async def _cut_in_time(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds
        await asyncio.sleep(TICK_SECONDS)  # what has just come is at the gate by then
        if self._gate.running and self._seconds:
            LOG.info(
                f"waiting for {answers(len(self._gate.running))}, at most {self._seconds:g} s; "
                "Ctrl-C again cuts them off"
            )
        while self._gate.running and loop.time() < until and not self._impatient:
            await asyncio.sleep(TICK_SECONDS)
        self.cut = self._gate.cut()
        if self.cut:
            LOG.warning(f"cut off {answers(self.cut)}")
        until = loop.time() + LEAVE_SECONDS
        while self.server_state.connections and loop.time() < until:
            await asyncio.sleep(TICK_SECONDS)
        for connection in list(self.server_state.connections):  # whose clients do not read
            if connection.transport is not None:
                connection.transport.abort()


def answers(count: int) -> str:
    """A number of answers, in words."""
    return "1 answer" if count == 1 else f"{count} answers"


async def while_open(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request whose connection may be closed over what came after it.

    Who sends nonsense behind a request gets uvicorn's 400 at once, and h11 refuses the answer that
    was under way: nobody is there to hear it, which is no error of ours.
    """

    async def told(message: Message) -> None:
        try:
            await send(message)
        except h11.LocalProtocolError:
            raise ClientGone from None

    try:
        await app(scope, receive, told)
    except ClientGone:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await gone(receive)


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
    app: Gate,
    service: Service,
    options: ServeOptions,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT; then no more is accepted, and what is under way may end.

    Returns how many answers were cut off.

    Parameters
    ----------
    ready : called when requests are accepted.
    """

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await while_open(app, scope, receive, send)
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
        h11_max_incomplete_event_size=HEAD_BYTES,
        backlog=BACKLOG,
    )
    # Uvicorn raises again what it was ended with; that has been answered by then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    server = Server(config, app, options.drain_seconds)
    try:
        server.run([listener])
    finally:
        service.stop()  # also where the loop ended badly; the models are closed next
    return server.cut
