"""What has no effect is named: unknown fields that the operator lets pass, and hosted tools."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request

import pytest
from serving import TINY, serving
from work import HANG_SECONDS

from cortiq.serve.errors import ApiError
from cortiq.serve.fields import Fields
from cortiq.serve.ignored import CURRENT, IgnoredParts

CHAT = {"model": TINY, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
SEARCH = {"type": "web_search"}


@pytest.fixture(scope="module", params=["strict", "lenient"])
def server(request, tmp_path_factory):
    flags = ["--ignore-unknown-fields"] if request.param == "lenient" else []
    with serving(tmp_path_factory.mktemp("ignored"), *flags) as running:
        running.lenient = request.param == "lenient"
        yield running


def ask(server, path, body):
    """Return status, the header about ignored parts, and the answer."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers["x-cortiq-ignored"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["x-cortiq-ignored"], error.read().decode()


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", {**CHAT, "top_a": 1}, "top_a"),
        ("/v1/chat/completions",
         {**CHAT, "messages": [{"role": "user", "content": "a", "mood": "x"}]},
         "messages[0].mood"),
        ("/v1/completions", {"model": TINY, "prompt": "a", "max_tokens": 1, "x\ny": 1, "z": 1},
         "x%0Ay, z"),
        ("/v1/embeddings", {"model": TINY, "input": "a", "other": 2}, "other"),
        ("/api/chat", {**CHAT, "stream": False, "other": 2}, "max_tokens, other"),
        ("/v1/messages", {**CHAT, "stream": True, "other": [1]}, "other"),
    ],
)  # fmt: skip
def test_unknown_fields_are_refused_or_named(server, path, body, named):
    status, header, _ = ask(server, path, body)
    assert (status, header) == ((200, named) if server.lenient else (400, None))


def test_fields_that_are_known_are_checked_all_the_same(server):
    assert ask(server, "/v1/chat/completions", {**CHAT, "temperature": "warm"})[0] == 400
    assert ask(server, "/v1/chat/completions", {**CHAT, "audio": {}})[0] == 400
    assert ask(server, "/v1/chat/completions", CHAT)[:2] == (200, None)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_are_not_run_here_are_named_in_the_response(server, stream):
    """In the header, in the response, in the last event of a stream, and in the log."""
    body = {"model": TINY, "input": "a", "max_output_tokens": 2, "tools": [SEARCH],
            "stream": stream}  # fmt: skip
    status, header, text = ask(server, "/v1/responses", body)
    assert (status, header) == (200, "tools[0]")
    whole = json.loads(text.strip().rpartition("data: ")[2] if stream else text)
    whole = whole["response"] if stream else whole
    assert whole["warnings"] == [
        "'tools[0]': web_search is not run here, and was not offered to the model."
    ]
    give_up = time.monotonic() + HANG_SECONDS
    while not any("ignored=tools[0]" in line for line in server.requests()):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_what_one_request_ignores_is_not_of_another():
    first = CURRENT.set(IgnoredParts(lenient=True))
    Fields({"a": 1}).close()
    assert CURRENT.get().header == "a"
    CURRENT.reset(first)
    with pytest.raises(ApiError, match="Unknown parameter"):
        Fields({"a": 1}).close()
    many = IgnoredParts(True, [f"é{n}" for n in range(20)])
    assert many.header.endswith(", and 4 more") and many.header.isascii()
