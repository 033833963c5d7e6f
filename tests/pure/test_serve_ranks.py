"""A server over several ranks: the answers of one process, and an end to what hangs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from adapter_folders import write_lora
from serving import TINY, Server, serving

import cortiq

pytestmark = pytest.mark.slow

SCHEMA = {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 3, "maxItems": 4}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "letters", "schema": SCHEMA}}
SPLITS = {
    "one process": (),
    "tensors on two": ("--devices", "2"),
    "layers on three": ("--devices", "3", "--split", "layer"),
    "replicas": ("--devices", "3", "--replicas", "3"),
    "prompts and answers apart": ("--devices", "2", "--replicas", "2", "--prefill-replicas", "1"),
    "replicas of tensors": ("--devices", "4", "--replicas", "2"),
}
OTHER = "synthetic:tiny-gemma3?seed=2"
OTHERS = {"replicas", "replicas of tensors"}
"""Splits where others answer when a rank is lost."""


def post(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    head = {"Content-Type": "application/json"}
    data = json.dumps({"model": TINY, **body}).encode()
    asked = urllib.request.Request(server.url + path, data, head)
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return json.load(answer)


def status(server: Server, path: str) -> int:
    try:
        with urllib.request.urlopen(server.url + path, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def answers(server: Server) -> list[str]:
    """Send requests of several kinds, all at once, and twice; return what each is answered."""
    asked: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "word " * (7 * n + 3)}], "seed": n,
         "max_tokens": 12, "temperature": 0.8 * (n % 2), "logprobs": n == 3}
        for n in range(6)
    ]  # fmt: skip
    asked.append({**asked[0], "response_format": STRUCTURED, "max_tokens": 40})
    found: dict[int, str] = {}

    def ask(place: int, body: dict[str, Any]) -> None:
        made = post(server, "/v1/chat/completions", body)
        found[place] = json.dumps(made["choices"], sort_keys=True)

    for part in (0, len(asked)):
        threads = [threading.Thread(target=ask, args=(part + n, b)) for n, b in enumerate(asked)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [found[n] for n in range(2 * len(asked))]


def test_every_split_answers_as_one_process(tmp_path: Path) -> None:
    made = {}
    for name, split in SPLITS.items():
        with serving(tmp_path, "--backend", "cpu", *split) as server:
            made[name] = answers(server)
            assert server.stop() == 0
    assert json.loads(json.loads(made["one process"][6])[0]["message"]["content"])
    assert len(made["one process"]) == 14
    for name in SPLITS:
        assert made[name] == made["one process"], name


def followers(server: Server) -> list[int]:
    """Return the processes of a server's other ranks."""
    listed = Path(f"/proc/{server.process.pid}/task").glob("*/children")  # a thread's own each
    ranks = sorted(int(pid) for children in listed for pid in children.read_text().split())
    return [pid for pid in ranks if "follower" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.parametrize("split", ["tensors on two", "replicas"])
def test_a_rank_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    """Its requests fail after the time a rank may take; the server says that it cannot go on."""
    monkeypatch.setenv("CORTIQ_RANK_TIMEOUT", "6")
    with serving(tmp_path, "--backend", "cpu", *SPLITS[split]) as server:
        body: Any = {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4}
        assert post(server, "/v1/chat/completions", body)["choices"]
        stopped = followers(server)
        os.kill(stopped[-1], signal.SIGSTOP)
        start = time.monotonic()
        failed = None
        while failed is None and time.monotonic() - start < (20 if split in OTHERS else 60):
            body["messages"][0]["content"] = f"Why? {time.monotonic()}"
            try:
                post(server, "/v1/chat/completions", body)
            except urllib.error.HTTPError as error:
                failed = error.code, error.read()
        # a replica may be missed between two requests: then none fails
        assert split in OTHERS if failed is None else failed[0] >= 500 and b"rank" in failed[1]
        assert status(server, "/health") == (200 if split in OTHERS else 503)
        if split in OTHERS:
            assert post(server, "/v1/chat/completions", body)["choices"]
        os.kill(stopped[-1], signal.SIGCONT)


@pytest.mark.parametrize("split", ["tensors on two", "replicas"])
def test_a_rank_that_ends_with_requests_in_flight(tmp_path: Path, split: str) -> None:
    """Plain and structured requests, one of them with an adapter, all end, with an answer or with
    an error that names the rank; without another replica the server says that it cannot go on.
    """
    with cortiq.load(TINY, backend="reference", context=64) as model:
        folder = write_lora(tmp_path / "one", model, 1)
    given = ("--backend", "cpu", "--adapter", f"one={folder}", *SPLITS[split])
    with serving(tmp_path, *given) as server:
        ended: list[tuple[int, str]] = []

        def ask(n: int) -> None:
            body: dict[str, Any] = {"messages": [{"role": "user", "content": f"Why {n}?"}]}
            structured = n % 3 == 1
            body |= {"response_format": STRUCTURED} if structured else {"ignore_eos": True}
            body["max_tokens"] = 2000
            try:
                post(server, "/v1/chat/completions", body | {"model": "one"} if n == 2 else body)
                ended.append((200, ""))
            except urllib.error.HTTPError as error:
                ended.append((error.code, error.read().decode()))

        threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        os.kill(followers(server)[-1], signal.SIGKILL)
        for thread in threads:
            thread.join(60)
        assert len(ended) == 6
        failed = [(code, text) for code, text in ended if code != 200]
        assert failed and all(code >= 500 for code, _ in failed), ended
        assert all("connection between the devices broke" in text for _, text in failed), ended
        health = 200 if split in OTHERS else 503
        assert (status(server, "/health"), status(server, "/v1/models")) == (health, 200)


def test_a_model_that_is_loaded_after_a_rank_was_lost(tmp_path: Path) -> None:
    """The server starts that rank anew and no other; the model that it serves meanwhile goes on
    with the replicas that are left, and the new one has all of them.
    """
    body: Any = {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4}
    with serving(tmp_path, OTHER, "--backend", "cpu", *SPLITS["replicas"]) as server:
        asked = [("/v1/chat/completions", body), ("/v1/chat/completions", body | {"model": OTHER})]
        expected = [post(server, *one)["choices"] for one in asked]
        post(server, f"/v1/models/{quote(OTHER)}/unload", {})
        before = followers(server)
        os.kill(before[0], signal.SIGKILL)
        post(server, f"/v1/models/{quote(OTHER)}/load", {})
        after = followers(server)
        assert (len(after), after[0]) == (2, before[1]) and after[1] not in before
        for _ in range(3):
            assert [post(server, *one)["choices"] for one in asked] == expected
        assert status(server, "/health") == 200
        os.kill(before[1], signal.SIGKILL)  # of the old ranks: the new one computes on
        time.sleep(1)
        found = [ended(server, *one) for one in asked * 3]
        assert found[-2:] == expected
        assert server.stop() == 0


def ended(server: Server, path: str, body: dict[str, Any]) -> Any:
    """Return what a request is answered, or the code of its error."""
    try:
        return post(server, path, body)["choices"]
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("split", [("--split", "layer"), ("--replicas", "3")])
def test_ray_actors_serve(tmp_path: Path, split: tuple[str, ...]) -> None:
    pytest.importorskip("ray")
    with serving(tmp_path, "--backend", "cpu") as server:
        expected = answers(server)
    with serving(tmp_path, "--backend", "cpu", "--devices", "3", "--ray", *split) as server:
        assert answers(server) == expected
