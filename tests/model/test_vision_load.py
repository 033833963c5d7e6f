"""Images under load: texts and images in one batch, prefixes reused, requests that go away."""

from __future__ import annotations

import base64
import io
import json
import random
import socket
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("starlette")

import numpy as np
import vision_folders
from PIL import Image

import cortiq

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from serving import Server

FAMILIES = ("llava", "pixtral", "internvl", "glm4v")
TOKENS, CLIENTS, ROUNDS = 8, 6, 3
SIZES = ((40, 70), (56, 56), (30, 20))


def drawn(number):
    size = SIZES[number % len(SIZES)]
    return np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)


def image_part(pixels):
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


WORK = (  # numbers of images, and texts
    ("hello",), (0, "what?"), (0, "what?", 1, "and?"), ("see", 2, "?"), ("other text " * 3,),
    (1, "what?"), (0, "which?"), (2, 1, "both?"),
)  # fmt: skip


def content(parts, image):
    return [image(drawn(p)) if type(p) is int else {"type": "text", "text": p} for p in parts]


def body_of(parts, **more):
    messages = [{"role": "user", "content": content(parts, image_part)}]
    return {"model": "sees", "messages": messages, "max_tokens": TOKENS, "temperature": 0, **more}


def asked(server, parts):
    data = json.dumps(body_of(parts, logprobs=True, top_logprobs=2)).encode()
    with urllib.request.urlopen(server.url + "/v1/chat/completions", data, timeout=120) as answer:
        made = json.load(answer)
    usage = made["usage"]["prompt_tokens_details"]["cached_tokens"]
    (choice,) = made["choices"]
    return choice["message"]["content"], json.dumps(choice["logprobs"]), usage


def left(server, parts):
    """Ask for a stream, and go away before it has ended."""
    data = json.dumps(body_of(parts, stream=True, max_tokens=200, ignore_eos=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as link:
        link.sendall(head.encode() + data)
        link.recv(200)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_under_load_are_those_of_requests_alone(family, tmp_path):
    folder = tmp_path / "sees"
    folder.mkdir()
    getattr(vision_folders, family)(folder)
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
        expected = [
            model.chat(
                [{"role": "user", "content": content(parts, lambda pixels: {"image": pixels})}],
                max_tokens=TOKENS, temperature=0,
            ).text
            for parts in WORK
        ]  # fmt: skip
    server = Server(
        str(folder), "--images", "--backend", "cpu", "--threads", "1", "--sequences", "3"
    )
    try:
        alone = [list(asked(server, parts)[:2]) for parts in WORK]
        assert [text for text, _ in alone] == expected
        assert len({likely for _, likely in alone}) == len(WORK)
        jobs = [(number, kind) for number in range(len(WORK)) for kind in ("ask",) * ROUNDS]
        jobs += [(number, "leave") for number in range(len(WORK))]
        random.Random(1).shuffle(jobs)
        reused = []

        def run(job):
            number, kind = job
            if kind == "leave":
                left(server, WORK[number])
                return
            *made, cached = asked(server, WORK[number])
            assert made == alone[number], WORK[number]
            reused.append(cached)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(run, jobs))
        assert max(reused) > 10
        assert [asked(server, parts)[:2] for parts in WORK] == [tuple(one) for one in alone]
        assert not [line for line in server.lines if "Traceback" in line]
    finally:
        server.stop()
