"""Several keys: names, limits, priorities, models, and a file that is read again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import TINY, serving
from starlette.datastructures import Headers

from cortiq.errors import CortiqError, FormatError
from cortiq.serve.api_keys import ApiKey, KeyRing, digest_of, read_keys
from cortiq.serve.errors import ApiError
from cortiq.serve.key_limits import KeyLimits
from cortiq.serve.logs import configure_logging
from cortiq.serve.options import ServeOptions
from cortiq.serve.service import priority_of

ALICE, BOB = "sk-alice-alice", "sk-bob-bob-bob"
FILE = f"""
[keys.alice]
key = "{ALICE}"
admin = true
priority = 5
[keys.bob]
sha256 = "{hashlib.sha256(BOB.encode()).hexdigest()}"
models = ["{TINY}"]
requests_per_minute = 3
"""
BODY = {"model": TINY, "prompt": "a", "max_tokens": 2}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def sent(key):
    return Headers({"authorization": f"Bearer {key}"})


def test_keys_of_a_file_are_read(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    alice, bob = read_keys(path)
    assert alice == ApiKey(digest_of(ALICE), "alice", priority=5, admin=True)
    assert bob.models == {TINY} and bob.requests_per_minute == 3 and not bob.admin
    ring = KeyRing(ServeOptions(api_keys=str(path), api_key="sk-own-own"))
    assert [ring.check(sent(key)).name for key in (ALICE, BOB, "sk-own-own")] == [
        "alice",
        "bob",
        "",
    ]
    for wrong in ("", "sk-alice", ALICE + "x"):
        with pytest.raises(ApiError):
            ring.check(sent(wrong))
    with pytest.raises(ApiError):
        ring.check(Headers({}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has tables"), ("keys = 1", "has tables"), ("[other]", "has tables"),
        ("[keys.a]", "either 'key' or 'sha256'"),
        ("[keys.a]\nkey = 'long enough'", "none of them a space"),
        ("[keys.a]\nkey = 'short'", "at least 8 characters"),
        ("[keys.a]\nkey = 'long-enough'\nlimit = 1", "unknown field 'limit'"),
        ("[keys.a]\nkey = 'long-enough'\nconcurrent = 0", "'concurrent' is an integer from 1"),
        ("[keys.a]\nkey = 'long-enough'\npriority = true", "'priority' is an integer"),
        ("[keys.a]\nkey = 'long-enough'\nmodels = 'a'", "'models' is a list"),
        ("[keys.a]\nkey = 'long-enough'\nadmin = 1", "'admin' is true or false"),
        ("[keys.a]\nsha256 = 'abc'", "64 hexadecimal digits"),
        ("[keys.'a b']\nkey = 'long-enough'", "a name has letters"),
        ("[keys.a]\nkey = 'long-enough'\n[keys.b]\nkey = 'long-enough'", "the same key"),
        ("[keys.a]\nkey = 'long-enough'\n[keys.a]", "is no file of keys"),
    ],
)  # fmt: skip
def test_a_file_with_an_error_is_refused_by_its_place(tmp_path, text, message):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(FormatError, match=message) as caught:
        read_keys(path)
    assert "long-enough" not in str(caught.value)


def test_a_file_is_read_again_when_it_changes_and_an_error_changes_nothing(tmp_path):
    path, clock = tmp_path / "keys.toml", Clock()
    path.write_text(FILE)
    ring = KeyRing(ServeOptions(api_keys=str(path)), clock)
    path.write_text(FILE.replace(ALICE, "sk-another-one"))
    assert ring.check(sent(ALICE)).name == "alice"  # it was looked at just now
    clock.now += 2
    assert ring.check(sent("sk-another-one")).name == "alice"
    path.write_text("[keys.alice]\nkey = 1")
    clock.now += 2
    assert ring.check(sent("sk-another-one")).name == "alice"
    path.unlink()
    clock.now += 2
    assert ring.check(sent("sk-another-one")).name == "alice"
    path.write_text(FILE)
    ring.reload()
    assert ring.check(sent(ALICE)).name == "alice"
    with pytest.raises(CortiqError, match="cannot be read"):
        KeyRing(ServeOptions(api_keys=str(tmp_path / "missing")))


def limited(**limits):
    return ApiKey(b"", "a", **limits)


def refusal(limits, key):
    with pytest.raises(ApiError) as refused:
        limits.enter(key)
    assert refused.value.status == 429
    return refused.value.code, refused.value.retry_after


@given(st.lists(st.floats(0, 30), min_size=1, max_size=60), st.integers(1, 10))
def test_no_minute_has_more_than_twice_the_requests(pauses, limit):
    """A full allowance and what comes within the minute; and who waits as told is admitted."""
    clock, key, admitted = Clock(), limited(requests_per_minute=limit), []
    limits = KeyLimits(clock)
    for pause in pauses:
        clock.now += pause
        try:
            limits.enter(key)({})
        except ApiError as refused:
            assert refused.code == "rate_limit_exceeded"
            clock.now += refused.retry_after
            limits.enter(key)({})
        admitted.append(clock.now)
    for start in admitted:
        assert sum(start <= at < start + 60 for at in admitted) <= 2 * limit


def test_tokens_are_counted_when_they_are_known_and_paid_back():
    clock, key = Clock(), limited(tokens_per_minute=60)
    limits = KeyLimits(clock)
    limits.enter(key)({"prompt_tokens": 100, "new_tokens": 20, "cached_tokens": 1000})
    assert refusal(limits, key) == ("rate_limit_exceeded", 61)
    clock.now += 61.5
    limits.enter(key)({})
    more = limited(tokens_per_minute=600)  # the file was changed: the new limit counts in full
    limits.enter(more)({"new_tokens": 599})
    limits.enter(more)({"new_tokens": 599})
    assert refusal(limits, more)[0] == "rate_limit_exceeded"


def test_requests_at_once_are_counted_by_name():
    limits, key = KeyLimits(Clock()), limited(concurrent=2)
    first, _ = limits.enter(key), limits.enter(key)
    assert refusal(limits, key) == ("concurrency_limit", 1)
    limits.enter(ApiKey(b"", "b", concurrent=1))
    first({})
    limits.enter(key)


@pytest.mark.parametrize(
    ("key", "asked", "priority"),
    [(None, None, 0), (None, 7, 7), (ApiKey(b""), 7, 7), (limited(priority=5), None, 5),
     (limited(priority=5), 7, 5), (limited(priority=5), -3, -3), (limited(), 7, 0)],
)  # fmt: skip
def test_a_request_has_at_most_the_priority_of_its_key(key, asked, priority):
    assert priority_of(SimpleNamespace(state=SimpleNamespace(key=key)), asked) == priority


def test_over_http(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(FILE)

    def ask(server, key, where="/v1/completions", **more):
        body = json.dumps({**BODY, **more}).encode()
        headers = {"authorization": f"Bearer {key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(server.url + where, body, headers)):
                return 200, None
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]["code"]

    with serving(tmp_path, "--api-keys", str(path)) as server:
        assert ask(server, ALICE, priority=3) == (200, None)
        assert "key=alice" in server.request_after(0)
        assert ask(server, ALICE, priority=101)[0] == 400
        assert ask(server, BOB, model="other") == (403, "model_not_allowed")
        assert ask(server, BOB, "/v1/models/m/unload") == (403, "not_admin")
        assert [ask(server, BOB)[0] for _ in range(2)] == [200, 429]
        assert ask(server, ALICE, "/v1/models/m/unload") == (404, "model_not_found")
        path.write_text(FILE.replace(BOB, "").replace("requests_per_minute = 3", ""))
        os.kill(server.process.pid, signal.SIGHUP)
        until = time.monotonic() + 20
        while not any("read 2 keys" in line for line in server.lines):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert ask(server, BOB) == (200, None)
        log = "\n".join(server.lines)
        assert ALICE not in log and BOB not in log
        assert server.stop() == 0


def test_the_log_of_a_file_and_of_a_terminal(tmp_path):
    """One JSON object for each request, also after a rotation; a terminal has a short line."""
    path = tmp_path / "access.log"
    with serving(tmp_path, "--access-log", str(path), "--log-format", "short") as server:
        for name in ("first.log", None):
            body = json.dumps(BODY).encode()
            with urllib.request.urlopen(f"{server.url}/v1/completions", body) as answer:
                answer.read()
            while not path.exists() or not path.read_text().endswith("}\n"):
                time.sleep(0.01)
            if name is not None:
                path.rename(tmp_path / name)
        assert server.stop() == 0
    for file in (path, tmp_path / "first.log"):
        (line,) = map(json.loads, file.read_text().splitlines())
        assert line["path"] == "/v1/completions" and line["new_tokens"] == 2
    short = rf"\d\d:\d\d:\d\d 200 POST /v1/completions {re.escape(TINY)} \d+ \+ 2 tokens [\d.]+ s"
    assert sum(bool(re.match(short, line)) for line in server.lines) == 2


def test_an_access_log_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(CortiqError, match="requests cannot be logged here"):
        configure_logging(None, str(tmp_path / "missing" / "log"))
