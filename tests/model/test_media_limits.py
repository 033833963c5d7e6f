"""Images and sounds of requests: what they cost is known, and bounded, before it is paid."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from time import monotonic, sleep

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("starlette")

import numpy as np
import vision_folders

import cortiq
from cortiq.errors import ContextError, RequestError
from cortiq.serve import images as served
from cortiq.serve import messages as parts_of_requests
from cortiq.serve.errors import ApiError, as_api_error
from cortiq.serve.fields import Fields
from cortiq.serve.images import FETCHES, Fetches, image_bytes
from cortiq.serve.messages import read_messages

PIXELS = np.zeros((64, 64, 3), np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Qwen2-VL in a context of 64 tokens; an image of 64 × 64 pixels has as many rows."""
    folder = tmp_path_factory.mktemp("qwen2_vl")
    vision_folders.qwen2_vl(folder)
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    rules |= {"min_pixels": 64, "max_pixels": 4096}
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    with cortiq.load(folder, images=True, backend="cpu", threads=1, context=64) as made:
        yield made


@pytest.fixture
def read(model, monkeypatch):
    """What the processor has read."""
    processor = model.senses.of("image", "").processor
    real, seen = processor.read, []

    def reading(image):
        seen.append(image)
        return real(image)

    monkeypatch.setattr(processor, "read", reading)
    return seen


def said(*content):
    return [{"role": "user", "content": list(content)}]


@pytest.mark.parametrize("way", ["chat", "raw"])
def test_images_without_room_are_refused_before_the_next_is_read(model, read, way):
    """However many are given: of each 4,096 values of patches would be kept."""
    with pytest.raises(
        ContextError, match="images of 128 rows: the context has 64 tokens"
    ) as error:
        if way == "chat":
            model.chat_prompt(said(*[{"image": PIXELS}] * 60))
        else:
            model.image_prompt("x", [PIXELS] * 60)
    assert len(read) == 2
    assert as_api_error(error.value).code == "context_length_exceeded"


@pytest.mark.parametrize("way", ["chat", "raw"])
def test_too_many_images_are_refused_before_one_is_read(model, read, way):
    with pytest.raises(RequestError, match="more than 64 images"):
        if way == "chat":
            model.chat_prompt(said(*[{"image": PIXELS[:8, :8]}] * 1000))
        else:
            model.image_prompt("x", (PIXELS[:8, :8] for _ in range(1000)))
    assert read == []


@pytest.mark.parametrize("part", [
    {"image": PIXELS, "audio": b"RIFF"}, {"type": "text", "text": "what?", "image": PIXELS},
    {"type": "image", "url": "a.png"}, {"type": "image_url", "image_url": {"url": "data:"}},
    {"type": "audio"}, {"type": "video", "video": "a.mp4"},
], ids=lambda part: "-".join(part))  # fmt: skip
def test_a_part_of_which_something_would_be_left_out_is_refused(model, part):
    with pytest.raises(RequestError, match="a part of"):
        model.chat_prompt(said(part))


def test_too_many_images_of_a_request_are_refused_before_one_is_decoded(monkeypatch):
    """Or fetched: of every address that it names a server would be asked."""
    decoded = []
    monkeypatch.setattr(parts_of_requests, "image_bytes", lambda *given: decoded.append(given))
    part = {"type": "image_url", "image_url": {"url": "https://a.test/a.png"}}
    messages = [{"role": "user", "content": [part] * 5} for _ in range(13)]
    with pytest.raises(ApiError, match="more than 64 parts 'image_url'"):
        read_messages(Fields({"messages": messages}))
    assert decoded == []
    read_messages(Fields({"messages": messages[:12]}))
    assert len(decoded) == 60


class Drip(BaseHTTPRequestHandler):
    """Sends what its address asks for: whole bytes, or a byte at a time in head or body."""

    def do_GET(self):
        if self.path == "/slow-head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            self.drip(b"X-A: " + b"a" * 50 + b"\r\n\r\n")
            return
        size = 60 if self.path == "/slow" else 600
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.path == "/slow":
            self.drip(b"a" * size)
        else:
            self.wfile.write(b"a" * size)

    def drip(self, data):
        for one in data:
            self.wfile.write(bytes([one]))
            self.wfile.flush()
            sleep(0.02)

    def log_message(self, *given):
        pass

    def handle(self):
        with suppress(OSError):
            super().handle()


@contextmanager
def fetching(fetches):
    token = FETCHES.set(fetches)
    try:
        yield
    finally:
        FETCHES.reset(token)


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setattr(served, "public_addresses", lambda host, port: iter(["127.0.0.1"]))
    server = HTTPServer(("127.0.0.1", 0), Drip)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://a.test:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["/slow", "/slow-head"])
def test_an_address_that_never_pauses_long_is_left_in_time(address, path):
    """It sends a byte in time, always: all of them take a second."""
    error = pytest.raises(ApiError, match="could not be fetched: TimeoutError")
    with fetching(Fetches(until=monotonic() + 0.2)), error:
        image_bytes(address + path, "url")


def test_the_images_of_a_request_share_time_and_bytes(address):
    with fetching(Fetches(left=1500)):
        assert [len(image_bytes(f"{address}/a", "url")) for _ in range(2)] == [600, 600]
        with pytest.raises(ApiError, match="larger than") as error:
            image_bytes(f"{address}/a", "url")
    assert error.value.status == 413
    with fetching(Fetches(until=monotonic())), pytest.raises(ApiError, match="could not be"):
        image_bytes(f"{address}/a", "url")
