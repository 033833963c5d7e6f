"""Images over HTTP: the four APIs give what Python gives, and say what is wrong with an image."""

from __future__ import annotations

import base64
import io
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("starlette")

import numpy as np
import vision_folders
from PIL import Image

import cortiq
from cortiq.cli.main import cli
from cortiq.options import LoadOptions
from cortiq.receipts.reader import receipt_of
from cortiq.serve.errors import ApiError
from cortiq.serve.images import FETCHES, Fetches, image_bytes, public_addresses
from cortiq.serve.log_replay import replay_log

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from serving import Server

PIXELS = np.random.default_rng(3).integers(0, 256, (30, 44, 3), dtype=np.uint8)
GREEDY = {"temperature": 0, "seed": 1}


def file_of(pixels=PIXELS):
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


ENCODED = base64.b64encode(file_of()).decode()
URL = f"data:image/png;base64,{ENCODED}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("folder") / "sees"
    place.mkdir()
    vision_folders.gemma3(place)
    return place


@pytest.fixture(scope="module")
def server(folder):
    log = ("--request-log", str(folder.parent / "requests.log"))
    made = Server(str(folder), "--images", "--threads", "1", "--backend", "cpu", *log)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def expected(folder):
    """Texts of an image and a text, and of the text alone."""
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
        image, text = {"image": PIXELS}, {"type": "text", "text": "what?"}
        options = {"max_tokens": 6, "temperature": 0}
        return [
            model.chat([{"role": "user", "content": content}], **options).text
            for content in ([image, text], "what?")
        ]


def asked(server, path, **fields):
    data = json.dumps(fields if "verify" in path else {"model": "sees", **fields}).encode()
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def chat(server, *parts, **more):
    messages = [{"role": "user", "content": list(parts)}]
    return asked(
        server, "/v1/chat/completions", messages=messages, max_tokens=6, **GREEDY, **more
    )  # fmt: skip


WHAT = {"type": "text", "text": "what?"}


def test_every_api_gives_what_python_gives(server, expected):
    whole, alone = expected
    assert whole != alone
    openai = chat(server, {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, WHAT)
    assert openai["choices"][0]["message"]["content"] == whole
    content = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "what?"}]
    responses = asked(
        server, "/v1/responses", input=[{"role": "user", "content": content}],
        max_output_tokens=6, **GREEDY,
    )  # fmt: skip
    assert responses["output"][0]["content"][0]["text"] == whole
    source = {"type": "base64", "media_type": "image/png", "data": ENCODED}
    content = [{"type": "image", "source": source}, WHAT]
    anthropic = asked(
        server, "/v1/messages", messages=[{"role": "user", "content": content}], max_tokens=6,
        temperature=0,
    )  # fmt: skip
    assert anthropic["content"][0]["text"] == whole
    options = {"temperature": 0, "num_predict": 6}
    message = {"role": "user", "content": "what?", "images": [ENCODED]}
    ollama = asked(server, "/api/chat", messages=[message], stream=False, options=options)
    assert ollama["message"]["content"] == whole
    made = asked(server, "/api/generate", prompt="what?", images=[ENCODED], stream=False,
                 options=options)  # fmt: skip
    assert made["response"] == whole
    assert chat(server, WHAT)["choices"][0]["message"]["content"] == alone


def test_what_the_model_can_is_listed(server):
    with urllib.request.urlopen(f"{server.url}/v1/models/sees") as answer:
        assert json.load(answer)["images"] is True
    assert "vision" in asked(server, "/api/show")["capabilities"]
    with urllib.request.urlopen(f"{server.url}/props") as answer:
        assert json.load(answer)["modalities"] == {"vision": True, "audio": False}


def test_ids_and_prefixes_are_those_of_the_image(server):
    part = {"type": "image_url", "image_url": {"url": URL}}
    messages = [{"role": "user", "content": [part, WHAT]}]
    counted = asked(server, "/tokenize", messages=messages)["count"]
    first = chat(server, part, WHAT)
    again = chat(server, part, WHAT)
    assert first["usage"]["prompt_tokens"] == counted
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == counted - 1
    other = base64.b64encode(file_of(255 - PIXELS)).decode()
    url = {"url": f"data:image/png;base64,{other}"}
    moved = chat(server, {"type": "image_url", "image_url": url}, WHAT)
    assert moved["usage"]["prompt_tokens_details"]["cached_tokens"] < counted - 4


CUT = base64.b64encode(file_of()[:60]).decode()
WRONG = {
    "http://example.com/a.png": "--fetch-images",
    "file:///etc/passwd": "must be a data URL",
    "/etc/passwd": "must be a data URL",
    "data:image/png;base64,@@@@": "base64",
    "data:text/plain;base64,aGk=": "data:image/TYPE",
    "data:image/png,abc": "data:image/TYPE",
    "data:image/png;base64,aGVsbG8=": "cannot be decoded",
    f"data:image/png;base64,{CUT}": "cannot be decoded",
}


@pytest.mark.parametrize("url", WRONG, ids=lambda url: url[:24])
def test_a_wrong_image_is_said_to_be_wrong(server, url):
    status, error = chat(server, {"type": "image_url", "image_url": {"url": url}})
    assert status == 400 and WRONG[url] in error["error"]["message"]


def test_what_an_image_cannot_be_asked_for(server):
    part = {"type": "image_url", "image_url": {"url": URL}}
    answer = {"role": "assistant", "content": [part]}
    messages = [{"role": "user", "content": "x"}, answer, {"role": "user", "content": "x"}]
    status, error = asked(server, "/v1/chat/completions", messages=messages)
    assert status == 400 and "must be text" in error["error"]["message"]
    status, error = chat(server, {"type": "image_url", "image_url": {}})
    assert status == 400 and "url" in error["error"]["message"]


def test_a_model_that_was_not_loaded_to_see_says_how(folder):
    from cortiq.model.load import load
    from cortiq.serve.fields import Fields
    from cortiq.serve.parsed_request import parse_chat
    from cortiq.serve.served_model import make_served_model

    with load(folder, backend="cpu", threads=1) as model:
        part = {"type": "image_url", "image_url": {"url": URL}}
        fields = Fields({"messages": [{"role": "user", "content": [part]}]})
        with pytest.raises(ApiError, match="--images"):
            parse_chat(make_served_model(model, None), fields, 4)


def resolving(*addresses):
    return lambda host, port, **more: [(0, 0, 0, "", (one, port)) for one in addresses]


@pytest.mark.parametrize("address", [
    "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "::1",
    "fe80::1", "fc00::1", "::ffff:127.0.0.1", "224.0.0.1", "100.64.0.1", "2002:7f00:1::",
])  # fmt: skip
def test_an_address_that_is_not_public_is_not_fetched(address):
    assert list(public_addresses("a.test", 80, resolving(address))) == []
    assert list(public_addresses("a.test", 80, resolving("8.8.8.8", address))) == []
    assert list(public_addresses("a.test", 80, resolving("8.8.8.8"))) == ["8.8.8.8"]


@pytest.mark.parametrize("url", [
    "http://127.0.0.1:1/a.png", "http://localhost/a.png", "http://[::1]/", "http://0x7f000001/",
    "http://user@8.8.8.8/", "https:///a", "http://a:99999/",
])  # fmt: skip
def test_a_private_address_is_refused_where_images_are_fetched(url):
    token = FETCHES.set(Fetches())
    try:
        with pytest.raises(ApiError):
            image_bytes(url, "url")
    finally:
        FETCHES.reset(token)


def test_a_redirect_is_checked_like_the_address_itself(monkeypatch):
    from cortiq.serve import images

    class Leading:
        def close(self):
            pass

    seen = []

    def connect(parts, where, fetches):
        seen.append(parts.hostname)
        return Leading() if parts.hostname == "public.test" else real(parts, where, fetches)

    real = images._connection
    monkeypatch.setattr(images, "_connection", connect)
    monkeypatch.setattr(images, "_answer", lambda *given: "http://127.0.0.1/secret")
    token = FETCHES.set(Fetches())
    try:
        with pytest.raises(ApiError, match="public address"):
            image_bytes("http://public.test/a.png", "url")
    finally:
        FETCHES.reset(token)
    assert seen == ["public.test", "127.0.0.1"]


def test_a_receipt_over_http_is_verified_with_the_image(server, folder):
    part = {"type": "image_url", "image_url": {"url": URL}}
    given = chat(server, part, WHAT, receipt=True)["choices"][0]["receipt"]
    receipt = receipt_of(given, "the answer")
    assert cortiq.verify(receipt, folder, images=[PIXELS], backend="cpu", threads=1).identical
    status, error = asked(server, "/v1/verify", receipt=given)
    assert status == 400 and "1 images" in error["error"]["message"]


def test_scores_of_prompts_are_those_that_the_images_give(server, folder):
    """Texts, too, where rows supply what they see of one another."""
    found = []
    for pixels in (PIXELS, 255 - PIXELS):
        url = "data:image/png;base64," + base64.b64encode(file_of(pixels)).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
        body = {
            "model": folder.name, "messages": [{"role": "user", "content": content}],
            "max_tokens": 1, "prompt_logprobs": 1, **GREEDY,
        }  # fmt: skip
        data = json.dumps(body).encode()
        asked = urllib.request.Request(server.url + "/v1/chat/completions", data)
        with urllib.request.urlopen(asked) as answer:
            made = json.load(answer)
        entries = made.get("prompt_logprobs") or made["choices"][0]["prompt_logprobs"]
        found.append(json.dumps(entries))
    assert found[0] != found[1]
    body = {"model": folder.name, "text_1": "hello", "text_2": "world"}
    asked = urllib.request.Request(server.url + "/v1/score", json.dumps(body).encode())
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200


def test_a_log_with_images_is_recomputed_where_they_are_given(server, folder, tmp_path):
    """Texts and images of one log on another backend; without an image no answer about it."""
    other = file_of(255 - PIXELS)
    (tmp_path / "b.png").write_bytes(other)
    (tmp_path / "a.png").write_bytes(file_of())
    urls = [URL, "data:image/png;base64," + base64.b64encode(other).decode()]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    chat(server, *parts, WHAT)
    chat(server, parts[1], WHAT)
    chat(server, WHAT)
    log = folder.parent / "requests.log"
    files = [str(tmp_path / "b.png"), str(tmp_path / "a.png")]
    options = LoadOptions(backend="reference")
    verdict = replay_log(log, [str(folder)], options, images=files)
    assert verdict.differences == [] and verdict.identical >= 3
    partial = replay_log(log, [str(folder)], options, images=files[:1])
    assert partial.differences and all("not given" in text for text in partial.differences)
    done = CliRunner().invoke(
        cli, ["replay", str(log), str(folder), *(x for f in files for x in ("--image", f))]
    )
    assert done.exit_code == 0
