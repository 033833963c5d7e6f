"""Access checks (keys, origins, host names), and responses to internal errors."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from cortiq.errors import BackendError
from cortiq.serve.authority import read_authority
from cortiq.serve.errors import ApiError, invalid
from cortiq.serve.logs import TextFormatter
from cortiq.serve.middleware import RequestMiddleware
from cortiq.serve.options import ServeOptions

FRIEND = "https://friend.example"
HERE = {"host": "127.0.0.1:8080"}
CHAT = "/v1/chat/completions"


class Asked:
    """One request through a gate, without a server."""

    def __init__(self, headers=HERE, path=CHAT, method="POST", fails=None, **options):
        self.reached, self.seen = False, []
        self.gate = RequestMiddleware(
            self.inner, ServeOptions(**options), lambda *facts: self.seen.append(facts)
        )
        self.fails, self.sent = fails, []
        pairs = headers.items() if isinstance(headers, dict) else headers
        raw = [(name.encode(), value.encode()) for name, value in pairs]
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
    ("sent", "status"),
    [({}, 401), ({"authorization": "Bearer other"}, 401), ({"authorization": "Bearer ké"}, 401),
     ({"authorization": "Bearer secret"}, 200), ({"authorization": "bEARER  secret "}, 200),
     ({"authorization": "secret"}, 401), ({"authorization": "Basic secret"}, 401),
     ({"authorization": "Bearer"}, 401), ({"authorization": "Bearersecret"}, 401)],
)  # fmt: skip
def test_a_key(sent, status):
    made = Asked({**HERE, **sent}, api_key="secret")
    assert (made.status, made.reached) == (status, status == 200)
    if status == 401:
        assert made.code == "invalid_api_key" and b"secret" not in made.body


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/health"])
def test_the_page_and_the_health_need_no_key_and_nothing_else_is_so(path):
    assert Asked(path=path, api_key="secret").reached
    for other in (f"{path}x", f"/x{path}", "/metrics", "/v1/models"):
        assert not Asked(path=other, api_key="secret").reached


LOOPBACK = ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "localhost", "::ffff:127.0.0.1"]


@pytest.mark.parametrize("host", ["rebound.example", "127.0.0.1.example", "2130706433", "127.1",
                                  "[::2]", "[::ffff:8.8.8.8]", "0.0.0.0"])  # fmt: skip
@pytest.mark.parametrize("address", LOOPBACK)
def test_on_any_address_of_this_machine_only_its_own_names_are_answered(host, address):
    assert Asked({"host": host}, host=address).code == "wrong_host"
    assert Asked({"host": host}, host=address, allow_host=(host,)).reached or host[0] == "["


@pytest.mark.parametrize(("host", "address"), [("rebound.example", False), ("127.1", False),
                                               ("[::2]", True), ("10.1.2.3:80", True)])  # fmt: skip
def test_on_an_open_address_without_keys_names_of_others_are_refused(host, address):
    """A page whose name was bound to this machine is of its origin, and would read answers."""
    page = {"host": host, "origin": f"http://{host}"}
    assert Asked(page, host="0.0.0.0").reached == address
    assert Asked({"host": "localhost"}, host="0.0.0.0").reached
    assert Asked({"host": socket.gethostname()}, host="0.0.0.0").reached
    key = {"authorization": "Bearer secret"}
    assert Asked({"host": host, **key}, host="0.0.0.0", api_key="secret").reached
    given = {"host": "0.0.0.0", "api_key": "secret", "allow_host": ("a.example",)}
    assert Asked({"host": host, **key}, **given).reached == address
    assert Asked({"host": "A.example", **key}, **given).reached


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8080", "LOCALHOST:80",
                                  "127.9.9.9:80", "[::ffff:127.0.0.1]", "localhost."])  # fmt: skip
def test_those_names(host):
    assert Asked({"host": host}).reached


def test_the_address_counts_that_is_listened_on_and_its_name_is_its_own():
    """A name in --host may be one of this machine, as Debian gives 127.0.1.1 to its own."""
    observe = lambda *facts: None  # noqa: E731
    gate = RequestMiddleware(None, ServeOptions(host="mybox"), observe, bound="127.0.1.1")
    assert (
        gate.local
        and not RequestMiddleware(None, ServeOptions(host="mybox"), observe, "10.0.0.1").local
    )
    gate._check_host(read_authority("MyBox:8080"))
    with pytest.raises(ApiError, match="not this server"):
        gate._check_host(read_authority("other:8080"))


MALFORMED = [
    "", "[", "[::1", "::1", "[::1]x", "[::1]:", "localhost:", "localhost:80:80", "localhost:x",
    "localhost:99999", "localhost:-1", "localhost:٣", "a@localhost", "localhost@evil", "a b",
    "localhost/x", "localhost?x", "localhost#x", "[127.0.0.1]", "[fe80::1%25lo]", "[::g]",
    "localhost\\x", "loc%61lhost", "x" * 400, ":80", ".", "lo\x00cal", "\x1b[2J",
]  # fmt: skip


@pytest.mark.parametrize("host", MALFORMED)
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_malformed_host_or_origin_is_a_bad_request_before_anything_else(host, address, caplog):
    with caplog.at_level("INFO", "cortiq.serve"):
        caplog.clear()
        logger = logging.getLogger("cortiq.serve")
        logger.addHandler(caplog.handler)
        for method in ("POST", "OPTIONS"):
            made = Asked({"host": host}, method=method, host=address, api_key="k")
            assert (made.status, made.code, made.reached) == (400, "invalid_host", False)
        page = {**HERE, "origin": f"http://{host}"}
        made = Asked(page, method=method, host=address, api_key="k")
        assert (made.status, made.code, made.reached) == (400, "invalid_origin", False)
        logger.removeHandler(caplog.handler)
    records = {id(record): record for record in caplog.records}.values()
    assert len(records) == 3 and not any(record.exc_info for record in records)
    assert all(TextFormatter().format(record).isprintable() for record in records)


def test_two_hosts_are_malformed():
    assert Asked([("host", "localhost"), ("host", "localhost")]).code == "invalid_host"
    origins = [*HERE.items(), ("origin", FRIEND), ("origin", FRIEND)]
    assert Asked(origins, allow_origin=(FRIEND,)).code == "invalid_origin"


@given(st.text(max_size=12) | st.text("[]:@/.%1a", max_size=12))
def test_an_authority_is_read_whole_or_not_at_all(text):
    """An accepted origin equals what a browser sends, and is parsed to itself again."""
    try:
        host, port = read_authority(text)
    except ValueError:
        return
    again = f"[{host}]" if ":" in host else host
    again += "" if port is None else f":{port}"
    assert read_authority(again) == (host, port)
    split = urlsplit(f"//{text}")
    assert split.username is None and (split.path, split.query, split.fragment) == ("", "", "")
    assert split.port == port
    assert (split.hostname or "").removesuffix(".") == host or ":" in host


@pytest.mark.parametrize(
    "origin", ["http://localhost", "http://LOCALHOST:80", "https://localhost:80"]
)
def test_ports_that_schemes_imply_are_the_same_origin(origin):
    assert Asked({"host": "localhost:80", "origin": origin}).reached
    other = origin.replace("localhost", "127.0.0.1").replace("LOCALHOST", "127.0.0.1")
    assert Asked({"host": "localhost:80", "origin": other}).code == "wrong_origin"


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
    noted = {"origin": FRIEND, "hint": "--allow-origin allows its pages"}
    assert page.seen[0][3] == {"error": "wrong_origin", **noted}
    assert FRIEND.encode() in page.body and b"--allow-origin" in page.body
    host = Asked({"host": "rebound.example"})
    assert host.seen[0][3] == {"error": "wrong_host", "host": "rebound.example"}
    long = Asked({**HERE, "origin": f"http://{'x' * 200}.example"})
    assert long.code == "wrong_origin" and len(long.body) < 500
    long = Asked({**HERE, "origin": "x" * 1000})
    assert len(long.seen[0][3]["origin"]) == 80 and len(long.body) < 500
