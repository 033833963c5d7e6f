"""Clients that are broken, slow, gone, or hostile: the right status, and a server as before."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
import time
import urllib.request

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import TINY, serving
from starlette.requests import Request
from work import HANG_SECONDS

from cortiq.serve.http_responses import ClientGone
from cortiq.serve.options import ServeOptions
from cortiq.serve.request_body import body_bytes

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
SHORT = {"model": TINY, "messages": HELLO, "max_tokens": 2, "temperature": 0}
LONG = {"model": TINY, "messages": HELLO, "max_tokens": 3900, "temperature": 0, "ignore_eos": True}
SECOND = ("--header-seconds", "1", "--body-seconds", "1", "--write-seconds", "1")
SMALL = ("--context", "4096", "--sequences", "2", "--waiting", "2", "--body-bytes", "65536")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("hostile"), *SECOND, *SMALL) as running:
        yield running
        assert running.process.poll() is None
        assert [line for line in running.lines if "Traceback" in line] == []


def send(server, body, path=CHAT, method="POST", **headers):
    """Status and object of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_SECONDS)
    try:
        data = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def metrics(server):
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        return answer.read().decode()


def check_alive(server):
    before = len(server.requests())
    assert send(server, SHORT)[0] == 200
    server.request_after(before)  # else the next test would take its line for one of its own


def raw(server, *parts, wait=0.0):
    """A connection that has sent some bytes."""
    made = socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS)
    for part in parts:
        made.sendall(part)
        time.sleep(wait)
    return made


def post(body, length=None):
    """The bytes of a request."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(data)}\r\n\r\n"
    )
    return head.encode() + data


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"a":1,"a":2}', b"[" * 50_000,
     b'{"model":"\\ud800"}', b'{"seed":' + b"9" * 5000 + b"}", b'{"temperature":NaN}'],
)  # fmt: skip
def test_what_is_no_object_is_a_bad_request(server, body):
    status, made = send(server, body)
    assert status == 400 and made["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": "hello"}, "messages"), ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages[0].content[0].image_url.url"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
         "messages[0].content[0].input_audio"),
        ({"temperature": True}, "temperature"), ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 2.5}, "max_tokens"),
        ({"n": 1000}, "n"), ({"stop": [""]}, "stop"), ({"stop": 3}, "stop"),
        ({"seed": "x"}, "seed"), ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"), ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"audio": {}}, "audio"), ({"model": None}, "model"), ({"model": 7}, "model"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(server, change, param):
    status, made = send(server, {**SHORT, **change})
    assert status == 400, made
    assert made["error"]["param"] == param and made["error"]["message"]


def test_unknown_models_paths_and_methods(server):
    assert send(server, {**SHORT, "model": "gpt-4"})[1]["error"]["code"] == "model_not_found"
    assert send(server, None, "/v1/nothing", "GET")[0] == 404
    for path in ("/v1/chat/completion", "/v1/chat/completions/"):
        status, made = send(server, {}, path)
        assert status == 404 and "Did you mean /v1/chat/completions?" in made["error"]["message"]
    assert send(server, None, "/../../etc/passwd", "GET")[0] == 404
    assert send(server, None, CHAT, "GET")[0] == 405
    assert send(server, None, "/v1/models/x", "GET")[0] == 404


def test_giant_bodies_are_refused_before_they_are_read(server):
    status, made = send(server, b"x" * 70_000)
    assert (status, made["error"]["code"]) == (413, "body_too_large")
    assert "--body-bytes" in made["error"]["message"]
    with raw(server, post(b"x" * 5_000_000)) as big:  # it may send all of it
        assert big.recv(100).startswith(b"HTTP/1.1 413")
    with raw(server, post(b"{", length=10**12)) as lied:
        assert lied.recv(100).startswith(b"HTTP/1.1 413")
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with raw(server, head.encode(), chunk * 5) as endless:
        assert endless.recv(100).startswith(b"HTTP/1.1 413")
    with raw(server, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000) as wide:
        assert wide.recv(100).startswith(b"HTTP/1.1 4")
    check_alive(server)


def test_contexts_too_long_say_so(server):
    status, made = send(server, {**SHORT, "messages": [{"role": "user", "content": "x" * 5000}]})
    assert (status, made["error"]["code"]) == (400, "context_length_exceeded")


def test_who_sends_slowly_is_cut_off_and_nobody_else_waits(server):
    slow = [raw(server, b"POST /v1/chat/comple") for _ in range(20)]
    slow += [raw(server, post(b'{"model"', length=100))]
    check_alive(server)
    assert slow[-1].recv(100).startswith(b"HTTP/1.1 408")
    for connection in slow:
        with connection:
            while connection.recv(100):
                pass


def test_who_goes_away_in_the_middle_of_a_body_is_no_error_of_the_server(server):
    before = len(server.requests())
    with raw(server, post(b'{"model"', length=100)):
        pass
    assert "status=499" in server.request_after(before)
    check_alive(server)


def test_whose_time_and_connection_end_together_has_gone_away():
    """A loop that was stopped for longer than the body's time reads the rest turn by turn."""

    async def meet() -> Exception:
        seen, begun = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def app(scope, receive, send):
            begun.set()
            try:
                await body_bytes(Request(scope, receive), ServeOptions(body_seconds=0.2))
            except Exception as error:
                seen.set_result(error)

        config = uvicorn.Config(app, port=0, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            running = asyncio.create_task(server.serve([listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            client = socket.create_connection(listener.getsockname())
            client.sendall(post(b"{", length=100))
            await begun.wait()
            client.sendall(b" ")
            client.close()
            time.sleep(0.3)
            found = await seen
            server.should_exit = True
            await running
        return found

    assert isinstance(asyncio.run(meet()), ClientGone)


def test_nonsense_behind_a_request_is_no_error_of_the_server(server):
    """The connection is closed over it while the answer is on its way."""
    for _ in range(5):
        with raw(server, post(SHORT), b"\0\1nonsense\r\n\r\n") as connection:
            while connection.recv(1 << 16):
                pass
    check_alive(server)
    assert [line for line in server.lines if " error " in line] == []


def test_who_stops_reading_is_given_up_with_its_work(server):
    before = len(server.requests())
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    much = {"n": 4, "stream": True, "logprobs": True, "top_logprobs": 20}
    connection.sendall(post({**LONG, **much}))
    line = server.request_after(before)
    connection.close()
    assert "status=499" in line and int(re.search(r"new_tokens=(\d+)", line)[1]) < 4 * 3900
    check_alive(server)


@pytest.mark.parametrize("stream", [True, False])
def test_who_goes_away_takes_the_work_along(server, stream):
    before = len(server.requests())
    connection = raw(server, post({**LONG, "stream": stream}))
    connection.recv(1) if stream else time.sleep(0.3)
    connection.close()
    line = server.request_after(before)
    assert "status=499" in line and int(re.search(r"new_tokens=(\d+)", line)[1]) < 3900
    check_alive(server)


def test_more_than_may_wait_are_told_to_come_again(server):
    held = [raw(server, post({**LONG, "stream": True})) for _ in range(2)]
    held += [raw(server, post(LONG)) for _ in range(2)]
    give_up = time.monotonic() + HANG_SECONDS
    while not re.search(r"^cortiq_sequences_waiting.* 2.0$", metrics(server), re.MULTILINE):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    status, made = send(server, SHORT)
    assert (status, made["error"]["code"]) == (429, "queue_full")
    for connection in held:
        connection.close()
    while send(server, SHORT)[0] == 429:  # they go within a step
        assert time.monotonic() < give_up


def test_other_pages_and_names_may_not_ask(server):
    assert send(server, SHORT, Origin="https://elsewhere.example")[0] == 403
    assert send(server, SHORT, Host="rebound.example")[0] == 403
    own = f"127.0.0.1:{server.port}"
    assert send(server, SHORT, Origin=f"http://{own}", Host=own)[0] == 200


def nested(levels):
    return json.loads("[" * levels + "]" * levels)


@pytest.mark.parametrize("levels", [120, 400, 900])
@pytest.mark.parametrize(
    "place",
    [
        lambda deep: {"metadata": deep}, lambda deep: {"chat_template_kwargs": {"a": deep}},
        lambda deep: {"response_format": {"type": "json_schema", "json_schema": {"schema": {
            "enum": deep}}}},
        lambda deep: {"tools": [{"type": "function", "function": {
            "name": "a", "parameters": {"enum": deep}}}], "tool_choice": "required"},
        lambda deep: {"messages": [{"role": "user", "content": deep}]}, lambda deep: {"x": deep},
    ],
)  # fmt: skip
def test_values_in_values_without_end_are_a_bad_request(server, place, levels):
    status, made = send(server, {**SHORT, **place(nested(levels))})
    assert status == 400 and "nested" in made["error"]["message"]
    status, made = send(server, {**SHORT, **place(nested(60))})
    assert status in (200, 400) and "nested" not in str(made)


def test_a_text_that_cannot_fit_is_refused_before_it_is_cut_into_tokens(server):
    """Its size is said in bytes: nobody has counted its tokens."""
    for path, field in ((CHAT, "messages"), ("/v1/completions", "prompt"),
                        ("/v1/embeddings", "input")):  # fmt: skip
        text = "x" * 40_000
        value = [{"role": "user", "content": text}] if field == "messages" else text
        status, made = send(server, {"model": TINY, field: value}, path)
        assert (status, made["error"]["code"]) == (400, "context_length_exceeded")
        assert "bytes" in made["error"]["message"] and made["error"]["param"] == field


def test_more_messages_than_the_context_has_tokens_are_not_looked_at(server):
    status, made = send(server, {**SHORT, "messages": [0] * 4097})
    assert (status, made["error"]["code"]) == (400, "context_length_exceeded")
    assert "4097 messages" in made["error"]["message"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner,
                                                                max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = [
    "messages", "temperature", "top_p", "n", "stop", "seed", "logit_bias", "logprobs", "tools",
    "top_logprobs", "stream_options", "tool_choice", "response_format", "presence_penalty",
    "frequency_penalty", "chat_template_kwargs", "reasoning_effort", "parallel_tool_calls",
    "model", "user", "modalities", "prompt", "input", "echo", "dimensions", "encoding_format",
]  # fmt: skip
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": VALUES},
    optional={"tool_calls": VALUES, "name": VALUES},
)


@settings(max_examples=80, deadline=None)
@given(
    path=st.sampled_from([CHAT, "/v1/completions", "/v1/embeddings"]),
    fields=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
    messages=st.lists(MESSAGE, min_size=1, max_size=2),
)
def test_any_object_gets_an_answer_or_a_client_error(server, path, fields, messages):
    start = {"prompt": "a"} if "chat" not in path else {"messages": messages}
    start = {"input": "a"} if "embed" in path else {**start, "max_tokens": 1}
    status, made = send(server, {"model": TINY, **start, **fields}, path)
    assert status in (200, 400, 404), made
    if status != 200:
        assert set(made["error"]) == {"message", "type", "param", "code"}


OTHER_NAMES = [
    "input", "instructions", "messages", "system", "tools", "tool_choice", "text", "reasoning",
    "include", "store", "thinking", "stop_sequences", "metadata", "options", "format", "think",
    "prompt", "raw", "keep_alive", "receipt", "tokens", "add_special_tokens", "max_output_tokens",
    "temperature", "stream_options", "background", "suffix", "context", "images", "truncate",
]  # fmt: skip
PART_NAMES = (
    "text", "content", "role", "name", "input", "arguments", "call_id", "output", "summary",
    "tool_use_id", "thinking", "id",
)  # fmt: skip
PART_KINDS = (
    "text", "input_text", "tool_use", "tool_result", "thinking", "message", "function_call",
    "function_call_output", "reasoning",
)  # fmt: skip
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(PART_KINDS)}, optional=dict.fromkeys(PART_NAMES, VALUES)
)
STARTS = {
    "/v1/responses": ("input", {"max_output_tokens": 1}),
    "/v1/messages": ("messages", {"max_tokens": 1}),
    "/v1/messages/count_tokens": ("messages", {}),
    "/api/chat": ("messages", {"stream": False}),
    "/api/generate": ("prompt", {"stream": False}),
    "/api/embed": ("input", {}),
    "/api/embeddings": ("prompt", {}),
    "/api/show": ("model", {}),
    "/tokenize": ("prompt", {}),
    "/detokenize": ("tokens", {}),
    "/v1/verify": ("receipt", {}),
}
"""The field with the contents of each of the other APIs, and the fields that keep it short."""


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(sorted(STARTS)),
    fields=st.dictionaries(st.sampled_from(OTHER_NAMES), VALUES, max_size=3),
    content=st.text(max_size=3) | st.lists(PART, max_size=3) | st.lists(st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.lists(PART)}),
        max_size=3) | VALUES,
)  # fmt: skip
def test_any_object_of_another_api_gets_an_answer_or_a_client_error(server, path, fields, content):
    name, short = STARTS[path]
    options = {"options": {"num_predict": 1}} if path.startswith("/api") else {}
    given = {"model": TINY, **options, **fields, **short}
    status, made = send(server, {**given, **({name: content} if name != "model" else {})}, path)
    assert status in (200, 400, 404), made
    if status != 200:
        said = made["error"] if path.startswith("/api") else made["error"]["message"]
        assert isinstance(said, str) and said


@pytest.mark.parametrize("patience", ["20", "0"])
def test_told_to_end_it_finishes_what_it_has_time_for(tmp_path, patience):
    more = ("--context", "4096", "--drain-seconds", patience, "--log-format", "json")
    with serving(tmp_path, *more) as server:
        working = raw(server, post({**LONG, "max_tokens": 800, "stream": True}))
        working.recv(1)
        assert server.stop(signal.SIGTERM) == (0 if patience == "20" else 1)
        text = b""
        while part := working.recv(1 << 16):
            text += part
        working.close()
        assert (b"data: [DONE]" in text) is (patience == "20")
        assert (b'"code":"shutting_down"' in text) is (patience == "0")
        line = next(made for made in map(json.loads, server.lines[2:]) if "status" in made)
        assert line["path"] == CHAT and line["new_tokens"] <= 800
        with pytest.raises(OSError):
            raw(server)
