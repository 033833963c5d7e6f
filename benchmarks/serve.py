"""A served model under many clients: `python benchmarks/serve.py [MODEL] [--seconds S] ...`.

Every kind of request is answered once to a client that is alone. Then `--clients` clients ask for
`--seconds`, streams and not, some going away in the middle. Every answer must be what the lone
client got, letter by letter; nothing may fail; memory must not grow; and the work of a client that
went away must end within a step. Exit code 1 where any of that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

PAGE = 4096
TOPICS = ("the sea", "bread", "a clock", "Rome", "prime numbers", "rain", "a fox", "glass")
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SHARE_CANCELLED, GROWTH, WARM = 0.1, 0.02, 240
"""Requests whose client goes away, what the resident size may grow in the second half, and seconds
of a run before which that says nothing: kept prefixes still fill their places.
"""


def kinds(model: str) -> list[dict[str, Any]]:
    """Return requests of many kinds: greedy, sampled, with penalties, schemas, stops, shared
    prefixes.
    """
    ways: list[dict[str, Any]] = [
        {"temperature": 0, "max_tokens": 24},
        {"temperature": 0.9, "top_p": 0.95, "seed": 1, "max_tokens": 32},
        {"temperature": 1.2, "seed": 2, "frequency_penalty": 0.5, "max_tokens": 16, "n": 2},
        {"temperature": 0, "stop": [".", ","], "max_tokens": 40},
        {"temperature": 0.7, "seed": 3, "logit_bias": {"28": -5}, "max_tokens": 20},
        {"temperature": 0, "max_tokens": 40, "response_format": {
            "type": "json_schema", "json_schema": {"name": "form", "schema": FORM}}},
    ]  # fmt: skip
    made = []
    for index, topic in enumerate(TOPICS):
        for number, way in enumerate(ways):
            padding = "Be brief and be careful. " * (8 * (index % 3))
            system = {"role": "system", "content": f"You are an assistant. {padding}"}
            user = {"role": "user", "content": f"Tell me something about {topic}. ({number})"}
            made.append({"model": model, "messages": [system, user], **way})
    return made


@dataclass
class RunCounts:
    """Counts of a run."""

    answers: int = 0
    tokens: int = 0
    cancelled: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)


class LoadClient:
    """Asks over one connection a request, with nothing between it and the wire."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def ask(self, body: dict[str, Any], leave_after: int = -1) -> tuple[Any, float]:
        """Send a request; return the choices' texts, finish reasons, and seconds to the first
        byte.

        Parameters
        ----------
        leave_after : pieces after which the client goes away; never where negative.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        try:
            data = json.dumps(body).encode()
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Content-Length: {len(data)}\r\n\r\n"
            )
            writer.write(head.encode() + data)
            started = time.perf_counter()
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer.split(b" ", 2)[1])
            if status != 200:
                raise RuntimeError(f"{status}: {(await reader.read())[:300]!r}")
            if not body.get("stream"):
                whole = json.loads(await reader.read())
                return _texts_of(whole), time.perf_counter() - started
            return await self._stream(reader, started, leave_after)
        finally:
            writer.close()

    async def _stream(
        self, reader: asyncio.StreamReader, started: float, leave_after: int
    ) -> tuple[Any, float]:
        texts: dict[int, list[Any]] = {}
        first, pieces, ended = 0.0, 0, False
        while size := int(await reader.readuntil(b"\r\n"), 16):
            data = (await reader.readexactly(size + 2))[:-2].decode()
            for event in data.split("\n\n"):
                if event == "data: [DONE]":
                    ended = True
                elif event.startswith("data: "):
                    made = json.loads(event[6:])
                    if "error" in made:
                        raise RuntimeError(made["error"]["message"])
                    first = first or time.perf_counter() - started
                    pieces += 1
                    for choice in made["choices"]:
                        kept = texts.setdefault(choice["index"], ["", None])
                        kept[0] += choice["delta"].get("content") or ""
                        kept[1] = choice["finish_reason"] or kept[1]
            if 0 <= leave_after < pieces:
                return None, first
        if not ended:
            raise RuntimeError("a stream ended before its end")
        return [tuple(texts[index]) for index in sorted(texts)], first


def _texts_of(whole: dict[str, Any]) -> list[tuple[str, str]]:
    return [(c["message"]["content"], c["finish_reason"]) for c in whole["choices"]]


def resident(pid: int) -> int:
    """Return bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


async def client_of(
    number: int, until: float, port: int, asked: list[Any], alone: list[Any], seen: RunCounts
) -> None:
    """Run one client, which sends random requests until the time is over."""
    chance, client = random.Random(number), LoadClient(port)
    while time.perf_counter() < until:
        which = chance.randrange(len(asked))
        stream = chance.random() < 0.6
        leaves = stream and chance.random() < SHARE_CANCELLED / 0.6
        body = {**asked[which], "stream": stream}
        started = time.perf_counter()
        try:
            got, first = await client.ask(body, chance.randrange(12) if leaves else -1)
        except Exception as error:
            seen.errors.append(f"{type(error).__name__}: {error}")
            continue
        if got is None:
            seen.cancelled += 1
            continue
        seen.answers += 1
        seen.seconds.append(time.perf_counter() - started)
        seen.first.append(first)
        if got != alone[which]:
            seen.wrong.append(f"{body}: {got} is not {alone[which]}")


async def load(port: int, pid: int, options: argparse.Namespace) -> RunCounts:
    """Collect answers to a lone client, then to many."""
    seen, asked = RunCounts(), kinds(options.model)
    lone = LoadClient(port)
    alone = [(await lone.ask(body))[0] for body in asked]
    print(f"{len(alone)} kinds of requests answered alone", flush=True)
    client = partial(client_of, port=port, asked=asked, alone=alone, seen=seen)
    seen.memory = await sampled(client, options, pid)
    return seen


async def sampled(
    client: Callable[[int, float], Coroutine[Any, Any, None]],
    options: argparse.Namespace,
    pid: int,
) -> list[tuple[float, int]]:
    """Run clients until they end; return seconds and a process's resident bytes, sampled so long.

    Parameters
    ----------
    client : makes a client of its number and the time after which it begins no request.
    """
    started, seconds, memory = time.perf_counter(), options.seconds, []
    clients = (client(number, started + seconds) for number in range(options.clients))
    running = [asyncio.create_task(one) for one in clients]
    while (at := time.perf_counter() - started) < seconds:
        memory.append((at, resident(pid)))
        await asyncio.sleep(min(0.5, seconds / 20))
    await asyncio.gather(*running)
    return [*memory, (time.perf_counter() - started, resident(pid))]


def grown(memory: list[tuple[float, int]], seconds: float) -> float:
    """Return the growth of the largest size, in the second half against the quarter before."""
    late = [size for at, size in memory if at > seconds / 2]
    early = [size for at, size in memory if seconds / 4 < at <= seconds / 2]
    return max(late) / max(early) - 1 if late and early else 0.0


def metric(port: int, name: str) -> float:
    """Return the sum of a metric over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return sum(float(v) for v in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))


def report(seen: RunCounts, port: int, options: argparse.Namespace) -> bool:
    """Print the counts; return whether every answer was right."""
    growth = grown(seen.memory, options.seconds)
    late = metric(port, "cortiq_steps_after_cancel")
    tokens = metric(port, "cortiq_new_tokens_total")
    steps = metric(port, "cortiq_step_seconds_count")
    took, first = sorted(seen.seconds), sorted(seen.first)
    middle, worst = len(took) // 2, int(len(took) * 0.99)
    print(f"{seen.answers} answers, {seen.cancelled} clients went away")
    print(f"wrong answers {len(seen.wrong)}, errors {len(seen.errors)}")
    print(f"{tokens / options.seconds:.1f} tokens/s in {steps:.0f} steps (alone ones included)")
    if took:
        print(f"seconds an answer: median {took[middle]:.2f}, 99 of 100 {took[worst]:.2f}")
        print(f"seconds to its first piece: median {first[middle]:.2f}, {first[worst]:.2f}")
    shown = seen.memory[:: max(1, len(seen.memory) // 12)]
    print("resident MB:", *(f"{size / 2**20:.0f}" for _, size in shown))
    print(f"resident size, second half against the quarter before: {growth:+.2%}")
    print(f"steps begun for a cancelled request after it was cancelled, at most: {late:.0f}")
    for line in [*seen.wrong[:3], *sorted(set(seen.errors))[:5]]:
        print(line)
    enough = seen.answers > options.clients or options.seconds < 30
    flat = growth <= GROWTH or options.seconds < WARM
    return not (seen.wrong or seen.errors) and flat and late <= 1 and enough


def main() -> int:
    """Serve, load, report; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=64)
    options, flags = parser.parse_known_args()  # others are of `cortiq serve`
    command = [sys.executable, "-m", "cortiq", "serve", options.model, "--port", "0"]
    server = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
    right = False
    try:
        if port := address(server):
            seen = asyncio.run(load(port, server.pid, options))
            right = report(seen, port, options)
    finally:
        server.terminate()
        code = server.wait(60)
    print(f"the server ended with {code}")
    return 0 if right and code == 0 else 1


def address(server: subprocess.Popen[str], kept: list[str] | None = None) -> int | None:
    """Return the port that a server listens on; from then on drain its log, or keep it."""
    drain = deque[str](maxlen=0) if kept is None else kept
    assert server.stderr is not None
    for line in server.stderr:
        if found := re.search(r"serving on http://\S+?:(\d+)", line):
            threading.Thread(target=drain.extend, args=(server.stderr,), daemon=True).start()
            return int(found[1])
        print(line, end="", file=sys.stderr)
    return None


if __name__ == "__main__":
    sys.exit(main())
