"""A log of requests: what it holds after kills, and that it replays to the bit elsewhere."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from serving import TINY, serving

from cortiq.cli.replay import replay
from cortiq.errors import CortiqError, FormatError, RequestError
from cortiq.options import LoadOptions
from cortiq.serve.errors import ApiError
from cortiq.serve.log_reader import LogReader
from cortiq.serve.log_replay import replay_log
from cortiq.serve.request_log import RequestLog, open_line, sealed_line

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}
DRAWN = {"model": TINY, "temperature": 1.7, "max_tokens": 8}
REQUESTS = (
    ("/v1/chat/completions", {**DRAWN, "messages": HELLO, "n": 2, "presence_penalty": 1}),
    ("/v1/chat/completions", {**DRAWN, "messages": HELLO, "stream": True, "stop": ["e", "a"]}),
    ("/v1/chat/completions", {**DRAWN, "messages": HELLO, "max_tokens": 40, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}),
    ("/v1/completions", {**DRAWN, "prompt": ["ab", "cd"], "n": 2, "logit_bias": {"65": 5}}),
    ("/v1/responses", {"model": TINY, "input": "hello", "max_output_tokens": 8}),
    ("/v1/messages", {**DRAWN, "temperature": 1, "messages": HELLO, "stream": True}),
    ("/api/chat", {"model": TINY, "messages": HELLO, "options": {"num_predict": 8}}),
)  # fmt: skip
CHOICES = 2 + 1 + 1 + 4 + 1 + 1 + 1


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return answer.read()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of two servers, the first of which was killed in the middle of an answer."""
    folder = tmp_path_factory.mktemp("log")
    path = folder / "requests.log"
    flags = ("--request-log", str(path), "--draft", "lookup")
    with serving(folder, *flags) as server:
        with ThreadPoolExecutor(len(REQUESTS)) as clients:
            list(clients.map(lambda one: post(server, *one), REQUESTS))
        body = {**DRAWN, "prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            answer.read(10)
            server.stop(signal.SIGKILL)
    with path.open("ab") as file:
        file.write(b'{"kind":"asked","ver')  # as a kill in the middle of writing leaves it
    with serving(folder, *flags) as server:
        post(server, *REQUESTS[0])
    return path


def test_what_a_killed_server_answered_is_recomputed_on_another_backend(log):
    verdict = replay_log(log, [], LoadOptions(backend="reference"))
    assert verdict.differences == [] and verdict.identical == CHOICES + 2 and verdict.tokens > 60
    assert (verdict.torn, verdict.unanswered) == (1, 1)


def test_a_changed_answer_is_found_and_named(log, tmp_path):
    """Each kind of change under a valid check is a difference; without one the line is torn."""
    lines = log.read_bytes().splitlines(keepends=True)
    places = [i for i, line in enumerate(lines) if b'"kind":"answered"' in line][:4]
    changes = (
        ("token_ids", lambda ids: [ids[0] ^ 1, *ids[1:]], "token 0 is"),
        ("token_ids", lambda ids: ids[:-1], "tokens, the log has"),
        ("digest", lambda text: text[:-1] + "0f"[text[-1] == "0"], "digests of their logits"),
        ("finish_reason", lambda text: text + "s", "it ended by"),
    )
    for place, (name, change, _) in zip(places, changes, strict=True):
        record = open_line(lines[place])
        lines[place] = sealed_line({**record, name: change(record[name])})
    changed = tmp_path / "changed.log"
    changed.write_bytes(b"".join(lines))
    done = CliRunner().invoke(replay, [str(changed), "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["identical"] == CHOICES + 2 - len(changes)
    assert all(any(said in one for one in found["differences"]) for *_, said in changes)


def test_the_command_says_what_is_the_same(log):
    done = CliRunner().invoke(replay, [str(log), "--threads", "1"])
    assert done.exit_code == 0
    assert f"identical: {CHOICES + 2} answers" in done.stdout and "1 torn lines" in done.stdout


@given(st.data())
def test_a_log_cut_anywhere_has_its_whole_lines(log, tmp_path_factory, data):
    text = log.read_bytes()
    cut = data.draw(st.integers(0, len(text)))
    path = tmp_path_factory.mktemp("cut") / "log"
    path.write_bytes(text[:cut])
    whole = list(LogReader(log).answers())
    reader = LogReader(path)
    try:
        found = list(reader.answers())
    except FormatError as error:
        assert "no line of it is one" in str(error) and b"\n" not in text[:cut]
        return
    assert found == whole[: len(found)]
    ended = text[:cut].count(b'"kind":"answered"')
    assert len(found) in (ended, ended - 1)


@given(st.data())
def test_a_byte_changed_anywhere_is_no_other_answer(log, tmp_path_factory, data):
    text = bytearray(log.read_bytes())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("changed") / "log"
    path.write_bytes(text)
    whole = list(LogReader(log).answers())
    assert all(one in whole for one in LogReader(path).answers())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2, this cortiq reads 1"),
        ({"n": 0}, "0 choices"),
        ({"seeds": []}, "0 seeds of 1 prompts"),
        ({"prompts": [["a"]]}, "prompts is 'a'"),
        ({"options": {}}, "has no"),
        ({"context": -1}, "context is -1"),
    ],
)
def test_lines_that_nobody_wrote_are_refused(log, tmp_path, change, message):
    path = tmp_path / "log"
    records = [open_line(line) for line in log.read_bytes().splitlines()]
    record = next(one for one in records if one and len(one.get("prompts", ())) == 1)
    path.write_bytes(sealed_line({**record, **change}))
    with pytest.raises(FormatError, match="line 1: is no line of a request log") as caught:
        list(LogReader(path).answers())
    assert message in str(caught.value)


def test_models_are_found_by_their_hash(log, tmp_path):
    path = tmp_path / "log"
    lines = [open_line(line) for line in log.read_bytes().splitlines()]
    own = [{**one, "model": "own.gguf"} if "model" in one else one for one in lines if one]
    path.write_bytes(b"".join(map(sealed_line, own)))
    with pytest.raises(CortiqError, match=r"no model given has the hash .* which own.gguf had"):
        replay_log(path, ["synthetic:tiny-llama"], LoadOptions())
    assert not replay_log(path, [TINY], LoadOptions(backend="cpu")).differences


def test_a_log_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(CortiqError, match="requests cannot be logged here"):
        RequestLog(tmp_path / "missing" / "log")
    with pytest.raises(FormatError, match="is no request log"):
        path = tmp_path / "text"
        path.write_text("hello\n")
        list(LogReader(path).answers())


def test_a_log_without_answers_is_no_proof_of_anything(log, tmp_path):
    path = tmp_path / "log"
    for text in (b"", log.read_bytes().splitlines(keepends=True)[0]):
        path.write_bytes(text)
        with pytest.raises(RequestError, match="no request of this log has an answer"):
            replay_log(path, [], LoadOptions())


def test_a_full_disk_refuses_the_request_and_leaves_a_torn_line(log, tmp_path, monkeypatch):
    """What is written once there is room again is whole, and so is what was there before."""
    path = tmp_path / "log"
    records = [open_line(line) for line in log.read_bytes().splitlines()[:3]]
    made, write = RequestLog(path), os.write
    made._write(records[0])
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(ApiError) as refused:
        made._write(records[1])
    assert (refused.value.status, refused.value.code) == (500, "request_log_error")
    monkeypatch.undo()
    again = RequestLog(path)  # as after a restart
    again._write(records[2])
    made.close()
    again.close()
    found = [open_line(line) for line in path.read_bytes().splitlines()]
    assert found[0] == records[0] and found[-1] == records[2] and None in found
