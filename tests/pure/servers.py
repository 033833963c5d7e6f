"""A loopback server of one file, as well or as badly behaved as a test wants it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class OneFile(ThreadingHTTPServer):
    """Serves `content` under every path.

    Attributes
    ----------
    ranges : whether it knows about ranges.
    cut : bytes after which each answer breaks off; None for never.
    answers : status codes of the first requests, in place of the file.
    pause : seconds between pieces of 64 KiB.
    elsewhere : where it redirects to from `url`.
    headers : of its answers, in place of the usual ones; None for one left out.
    asked : (range, authorization) of every request.
    """

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.cut, self.pause = content, True, None, 0.0
        self.answers: list[int] = []
        self.elsewhere = ""
        self.headers: dict[str, str | None] = {}
        self.asked: list[tuple[str | None, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/files/tiny.gguf"


class Handler(BaseHTTPRequestHandler):
    server: OneFile

    def do_GET(self) -> None:
        told, content = self.headers.get("Range"), self.server.content
        self.server.asked.append((told, self.headers.get("Authorization")))
        if self.server.answers:
            return self.refuse(self.server.answers.pop(0))
        if self.server.elsewhere and self.server.url.endswith(self.path):
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)
            return self.end_headers()
        wanted = self.headers.get("If-Range", self.server.headers.get("ETag"))
        if not self.server.ranges or wanted != self.server.headers.get("ETag"):
            told = None
        start = int(told.removeprefix("bytes=").rstrip("-")) if told else 0
        if start >= len(content):
            return self.refuse(416, f"bytes */{len(content)}")
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        usual: dict[str, str | None] = {"Content-Length": str(len(content) - start)}
        for name, value in (usual | self.server.headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        return self.send(content[start:][: self.server.cut])

    def send(self, content: bytes) -> None:
        for at in range(0, len(content), 1 << 16):
            self.wfile.write(content[at : at + (1 << 16)])
            time.sleep(self.server.pause)

    def refuse(self, status: int, told: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Range", told)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that was killed
            super().handle()


@contextmanager
def one_file(content: bytes) -> Iterator[OneFile]:
    """A server that ends with the block."""
    server = OneFile(content)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
