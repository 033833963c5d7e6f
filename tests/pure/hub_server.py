"""A loopback server that speaks the hub's API: listing, redirects to a store, ranges, tokens."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

from cortiq.formats.download import git_blob_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".gguf")


class Hub(ThreadingHTTPServer):
    """One repository, org/name; its earlier name was org/earlier.

    Attributes
    ----------
    files : what is sent. claimed : what is listed in place of it.
    commits : commits by revision.
    requests : paths, in order. tokens : the Authorization of each. ranges : those of the store.
    cut : bytes after which an answer of the store breaks off; None for never.
    pause : seconds between pieces of 64 KiB.
    closed : status with which everything is refused to those without a token; 0 for an open one.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], claimed: dict[str, bytes] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.claimed = files, claimed or {}
        self.commits = {"main": COMMIT}
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        self.ranges: list[str | None] = []
        self.cut: int | None = None
        self.pause = 0.0
        self.closed = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def siblings(self) -> list[dict[str, object]]:
        """The file list; digests of what is claimed, not of what will be sent."""
        listed = []
        for name, content in (self.files | self.claimed).items():
            digest = hashlib.sha256(content).hexdigest()
            size = {"rfilename": name, "size": len(content), "blobId": git_blob_id(content)}
            lfs = {"lfs": {"sha256": digest, "size": len(content), "pointerSize": 130}}
            listed.append(size | (lfs if name.endswith(LARGE) else {}))
        return listed

    def etag(self, name: str) -> str:
        content = self.claimed.get(name, self.files[name])
        is_large = name.endswith(LARGE)
        return hashlib.sha256(content).hexdigest() if is_large else git_blob_id(content)

    def start(self) -> Hub:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, body: bool) -> None:
        path, hub = unquote(urlparse(self.path).path), self.server
        hub.requests.append(path)
        hub.tokens.append(self.headers.get("Authorization"))
        if "/org/earlier/" in path:
            target = self.path.replace("/org/earlier/", "/org/name/")
            return self.send(307, b"", body, {"Location": target})
        if path.startswith("/store/"):
            return self.send_range(hub.files[path.removeprefix("/store/")], body)
        if hub.closed and not self.headers.get("Authorization"):
            return self.send(hub.closed, b"", body, {"X-Error-Code": "GatedRepo"})
        for revision in (*hub.commits, *hub.commits.values()):
            if path == f"/api/models/org/name/revision/{revision}":
                commit = hub.commits.get(revision, revision)
                info = {"id": "org/name", "sha": commit, "siblings": hub.siblings()}
                return self.send(200, json.dumps(info).encode(), body)
            name = path.removeprefix(f"/org/name/resolve/{revision}/")
            if name in hub.files:
                return self.send_file(name, hub.commits.get(revision, revision), body)
        kind = "RevisionNotFound" if "/org/name/" in path else "RepoNotFound"
        return self.send(404, b"", body, {"X-Error-Code": kind})

    def send_file(self, name: str, commit: str, body: bool) -> None:
        etag, content = self.server.etag(name), self.server.files[name]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        if not name.endswith(LARGE):
            return self.send(200, content, body, headers)
        size = str(len(self.server.claimed.get(name, content)))
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": size}
        headers |= {"Location": f"http://localhost:{self.server.server_port}/store/{name}"}
        return self.send(302, b"", body, headers)

    def send_range(self, content: bytes, body: bool) -> None:
        told = self.headers.get("Range")
        self.server.ranges.append(told)
        start = int(told.removeprefix("bytes=").rstrip("-")) if told else 0
        span = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers = {"Content-Range": span} if told else {}
        self.send(206 if told else 200, content[start:], body, headers, self.server.cut)

    def send(
        self,
        status: int,
        content: bytes,
        body: bool,
        extra: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(extra or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        for at in range(0, len(content[:cut]) if body else 0, 1 << 16):
            self.wfile.write(content[:cut][at : at + (1 << 16)])
            time.sleep(self.server.pause)
        if cut is not None:
            self.close_connection = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that was killed
            super().handle()

    def log_message(self, *_: object) -> None:
        pass
