"""Who may ask: keys, origins, names of the host; and what comes of errors inside."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.exceptions import HTTPException

from cortiq.errors import BackendError
from cortiq.serve.errors import ApiError, invalid
from cortiq.serve.gate import Gate
from cortiq.serve.options import ServeOptions

FRIEND = "https://friend.example"
HERE = {"host": "127.0.0.1:8080"}
CHAT = "/v1/chat/completions"


class Asked:
    """One request through a gate, without a server."""

    def __init__(self, headers=HERE, path=CHAT, method="POST", fails=None, **options):
        self.reached, self.seen = False, []
        self.gate = Gate(
            self.inner, ServeOptions(**options), lambda *facts: self.seen.append(facts)
        )
        self.fails, self.sent = fails, []
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        asyncio.run(self.gate(scope, self.receive, self.send))
        start = self.sent[0]
        self.status = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        self.body = b"".join(message.get("body", b"") for message in self.sent[1:])

    async def inner(self, scope, receive, send):
        self.reached = True
        if self.fails is not None:
            raise self.fails
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive(self):
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message):
        self.sent.append(message)

    @property
    def code(self):
        return json.loads(self.body)["error"]["code"]


def test_every_answer_has_a_number_and_is_counted():
    made = Asked()
    assert made.status == 200 and made.headers["x-request-id"].startswith("req_")
    ((path, status, seconds, facts),) = made.seen
    assert (path, status, facts) == (CHAT, 200, {}) and seconds > 0


@pytest.mark.parametrize(
    ("given", "status"),
    [({}, 401), ({"authorization": "Bearer other"}, 401), ({"authorization": "Bearer ké"}, 401),
     ({"authorization": "Bearer secret"}, 200)],
)  # fmt: skip
def test_a_key(given, status):
    made = Asked({**HERE, **given}, api_key="secret")
    assert (made.status, made.reached) == (status, status == 200)
    if status == 401:
        assert made.code == "invalid_api_key" and b"secret" not in made.body


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/health"])
def test_the_page_and_the_health_need_no_key_and_nothing_else_is_so(path):
    assert Asked(path=path, api_key="secret").reached
    for other in (f"{path}x", f"/x{path}", "/metrics", "/v1/models"):
        assert not Asked(path=other, api_key="secret").reached


@pytest.mark.parametrize("host", ["rebound.example", "127.0.0.1.example", "", "127.0.0.1@evil"])
def test_on_this_machine_only_its_own_names_are_answered(host):
    assert Asked({"host": host}).code == "wrong_host"
    assert Asked({"host": host}, host="0.0.0.0").reached


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8080", "LOCALHOST:80"])
def test_those_names(host):
    assert Asked({"host": host}).reached


def test_pages_of_others_may_ask_only_when_they_are_named():
    assert Asked({**HERE, "origin": FRIEND}).code == "wrong_origin"
    assert Asked({**HERE, "origin": "null"}).code == "wrong_origin"
    own = Asked({**HERE, "origin": "http://127.0.0.1:8080"})
    assert own.reached and "access-control-allow-origin" not in own.headers
    friend = Asked({**HERE, "origin": FRIEND}, allow_origin=(FRIEND,))
    assert friend.reached and friend.headers["access-control-allow-origin"] == FRIEND


def test_a_browsers_question_before_the_question():
    asked = {**HERE, "origin": FRIEND}
    allowed = Asked(asked, method="OPTIONS", allow_origin=(FRIEND,), api_key="secret")
    assert allowed.status == 204 and not allowed.reached
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert Asked(asked, method="OPTIONS").code == "wrong_origin"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(ValueError("a secret of the insides"), 500, "internal_error"),
     (BackendError("the device is gone"), 500, "engine_error"),
     (MemoryError(), 503, "out_of_memory"), (ApiError(418, "tea", "teapot"), 418, "teapot")],
)  # fmt: skip
def test_errors_inside_are_answers(error, status, code):
    made = Asked(fails=error)
    assert (made.status, made.code) == (status, code) and b"insides" not in made.body
    assert made.seen[0][1] == status and made.seen[0][3] == {"error": code}


def test_the_log_has_code_and_field_of_an_error_and_not_its_text():
    made = Asked(fails=invalid("'top_p' must be a number, not 'a secret'.", "top_p"))
    assert made.seen[0][3] == {"error": "invalid_request_error", "param": "top_p"}
    method = Asked(fails=HTTPException(405, headers={"Allow": "POST"}), method="GET")
    assert (
        method.seen[0][3] == {"error": "method_not_allowed"} and method.headers["allow"] == "POST"
    )
    assert json.loads(method.body)["error"]["message"] == f"{CHAT} takes POST, not GET."


def test_who_may_not_ask_is_told_why_and_so_is_the_log():
    page = Asked({**HERE, "origin": FRIEND})
    noted = {"origin": FRIEND, "hint": "--allow-origin lets its pages call"}
    assert page.seen[0][3] == {"error": "wrong_origin", **noted}
    assert FRIEND.encode() in page.body and b"--allow-origin" in page.body
    host = Asked({"host": "rebound.example"})
    assert host.seen[0][3] == {"error": "wrong_host", "host": "rebound.example"}
    long = Asked({**HERE, "origin": "x" * 1000})
    assert len(long.seen[0][3]["origin"]) == 80 and len(long.body) < 500
