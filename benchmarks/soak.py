"""A server of more models than fit, under many clients of every API, killed at the end.

`python benchmarks/soak.py [--models A,B] [--clients 256] [--seconds 600]`; other flags are of
`cortiq serve`. Every request is answered once to a client that is alone; then all clients ask for
every model through every API, streamed and not, while models are loaded and unloaded, receipts are
written and requests logged. Every answer must be the lone one's, letter by letter; nothing may
fail; memory must not grow. Then the server is killed with SIGKILL; its log must replay to the bit,
and its receipts must verify. Exit code 1 where any of that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from serve import GROWTH, WARM, address, grown, metric, sampled

TOPICS = ("the sea", "bread", "a clock", "Rome", "rain", "glass")
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
"""Chat template of all models: base models have none of their own."""
VERIFIED = 5
"""Receipts that are verified at the end."""
Whole = Callable[[dict[str, Any]], str]


def _blocks(made: dict[str, Any], kind: str) -> str:
    parts = [part for item in made["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts if part["type"] == kind)


@dataclass(frozen=True)
class SoakApi:
    """An API: its path, its field for the prompt, and texts of answers.

    Attributes
    ----------
    whole : text of an answer that is not streamed. piece : text of one object of a stream.
    """

    path: str
    body: Callable[[str, dict[str, Any]], dict[str, Any]]
    whole: Whole
    piece: Whole


def _talk(topic: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Tell me something about {topic}."}]


APIS = {
    "chat": SoakApi(
        "/v1/chat/completions", lambda topic, way: {"messages": _talk(topic), **way},
        lambda made: made["choices"][0]["message"]["content"],
        lambda made: (made["choices"] or [{"delta": {}}])[0]["delta"].get("content") or "",
    ),
    "text": SoakApi(
        "/v1/completions", lambda topic, way: {"prompt": topic, **way},
        lambda made: made["choices"][0]["text"], lambda made: made["choices"][0]["text"],
    ),
    "responses": SoakApi(
        "/v1/responses",
        lambda topic, way: {"input": topic, "max_output_tokens": way["max_tokens"],
                            **{name: v for name, v in way.items() if name != "max_tokens"}},
        lambda made: _blocks(made, "output_text"),
        lambda made: made["delta"] if made["type"] == "response.output_text.delta" else "",
    ),
    "messages": SoakApi(
        "/v1/messages", lambda topic, way: {"messages": _talk(topic), **way},
        lambda made: "".join(block.get("text", "") for block in made["content"]),
        lambda made: made.get("delta", {}).get("text", ""),
    ),
    "ollama": SoakApi(
        "/api/chat",
        lambda topic, way: {"messages": _talk(topic), "options": {
            "num_predict": way["max_tokens"],
            **{name: v for name, v in way.items() if name != "max_tokens"}}},
        lambda made: made["message"]["content"], lambda made: made["message"]["content"],
    ),
}  # fmt: skip
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0, "max_tokens": 16}, {"temperature": 0.9, "seed": 1, "max_tokens": 12},
)  # fmt: skip


@dataclass(frozen=True)
class SoakRequest:
    """A request of one kind."""

    api: SoakApi
    body: dict[str, Any]


def all_requests(models: list[str]) -> list[SoakRequest]:
    """Return requests for every model, topic and way through every API."""
    return [
        SoakRequest(api, {"model": model, **api.body(topic, way)})
        for model in models for topic in TOPICS for way in WAYS for api in APIS.values()
    ]  # fmt: skip


@dataclass
class SoakCounts:
    """Counts of a run; `memory` is (seconds, bytes)."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)


async def ask(port: int, asked: SoakRequest, stream: bool) -> str:
    """Send a request and return the text of its answer; RuntimeError for anything else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        data = json.dumps({**asked.body, "stream": stream}).encode()
        head = f"POST {asked.api.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1] != b"200":
            raise RuntimeError(f"{head.split(b' ', 2)[1]!r}: {body[:300]!r}")
        if not stream:
            return asked.api.whole(json.loads(body))
        return "".join(asked.api.piece(one) for one in events(unchunked(body)))
    finally:
        writer.close()


def unchunked(body: bytes) -> str:
    """Return a chunked body without its chunks' heads; RuntimeError if its end is missing."""
    parts, rest = [], body
    while True:
        size, found, rest = rest.partition(b"\r\n")
        if not found:
            raise RuntimeError("a stream ended before its end")
        length = int(size, 16)
        if length == 0:
            return b"".join(parts).decode()
        parts.append(rest[:length])
        rest = rest[length + 2 :]


def events(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream: data of events, or lines of JSON."""
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            made = json.loads(data)
            if error := made.get("error"):
                raise RuntimeError(str(error))
            yield made


async def client_of(
    number: int, until: float, port: int, asked: list[SoakRequest], alone: list[str],
    seen: SoakCounts,
) -> None:  # fmt: skip
    """Run one client, which sends random requests until the time is over."""
    chance = random.Random(number)
    while time.perf_counter() < until:
        which, stream = chance.randrange(len(asked)), chance.random() < 0.5
        try:
            got = await ask(port, asked[which], stream)
        except Exception as error:
            seen.errors.append(f"{type(error).__name__}: {error}")
            continue
        seen.answers[asked[which].api.path] += 1
        if got != alone[which]:
            seen.wrong.append(f"{asked[which].body}: {got!r} is not {alone[which]!r}")


async def load(port: int, pid: int, models: list[str], options: argparse.Namespace) -> SoakCounts:
    """Collect answers to a lone client, then to many."""
    seen, asked = SoakCounts(), all_requests(models)
    alone = [await ask(port, one, False) for one in asked]
    print(f"{len(alone)} kinds of requests answered alone", flush=True)
    client = partial(client_of, port=port, asked=asked, alone=alone, seen=seen)
    seen.memory = await sampled(client, options, pid)
    return seen


def report(seen: SoakCounts, lines: list[str], options: argparse.Namespace) -> bool:
    """Print the counts; return whether all of the run was right."""
    growth = grown(seen.memory, options.seconds)
    loads = sum(" loaded " in line for line in lines)
    print(f"{sum(seen.answers.values())} answers: {dict(seen.answers)}")
    print(
        f"wrong answers {len(seen.wrong)}, errors {len(seen.errors)}, models loaded {loads} times"
    )
    shown = seen.memory[:: max(1, len(seen.memory) // 16)]
    print("resident MB:", *(f"{size / 2**20:.0f}" for _, size in shown))
    print(f"resident size, second half against the quarter before: {growth:+.2%}")
    for line in [*seen.wrong[:3], *sorted(set(seen.errors))[:5]]:
        print(line)
    flat = growth <= GROWTH or options.seconds < WARM
    return (
        not (seen.wrong or seen.errors)
        and flat
        and all(seen.answers[a.path] for a in APIS.values())
    )


def recomputed(folder: Path) -> bool:
    """Replay the log and verify some receipts; return whether all are identical."""
    command = [sys.executable, "-m", "cortiq"]
    done = subprocess.run([*command, "replay", str(folder / "log")], check=False)
    receipts = sorted((folder / "receipts").iterdir())
    print(f"{len(receipts)} receipts", flush=True)
    right = done.returncode == 0
    for path in random.Random(1).sample(receipts, min(VERIFIED, len(receipts))):
        right = (
            subprocess.run([*command, "verify", str(path)], check=False).returncode == 0 and right
        )
    return right


def main() -> int:
    """Serve, load, kill, recompute; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="smollm2,gemma3-270m")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=256)
    options, flags = parser.parse_known_args()  # others are of `cortiq serve`
    models, lines, right = options.models.split(","), list[str](), False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "template").write_text(TEMPLATE)
        command = [
            sys.executable, "-m", "cortiq", "serve", *models, "--port", "0",
            "--max-loaded", "1", "--waiting", "4096", "--request-log", str(folder / "log"),
            "--receipts", str(folder / "receipts"), "--load-wait-seconds", "3600",
            "--chat-template", str(folder / "template"), *flags,
        ]  # fmt: skip
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            if port := address(server, lines):
                seen = asyncio.run(load(port, server.pid, models, options))
                print(f"{metric(port, 'cortiq_new_tokens_total'):.0f} tokens")
                right = report(seen, lines, options)
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait(60)
        right = right and recomputed(folder)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
