"""`cortiq serve` under load: `python benchmarks/served.py [MODEL] [--clients 1,32,128,256] ...`.

Each client asks for one completion after the other, as a stream. Lengths of prompts and answers
are as varied as those of people's conversations, log-normal (prompts: median 96, answers: median
144), drawn by a fixed seed; every number of clients answers the same requests, from the first one
on. Other flags are of `cortiq serve`. Printed are tokens a second in and out, the time to the first
token, and the time between tokens of a stream. Exit code 1 where a request failed, or where two
numbers of clients got another text for one request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve import address

SEED = 20
PROMPT, ANSWER = (math.log(96), 1.1, 4, 1500), (math.log(144), 0.8, 4, 700)
"""Mean and deviation of a length's logarithm, and its bounds."""
LETTERS = "etaoin shrdlu cmfwyp "


@dataclass(frozen=True)
class Arrival:
    """A request: its prompt, and tokens of its answer."""

    prompt: str
    tokens: int


@dataclass
class Seen:
    """Measurements of the clients.

    Attributes
    ----------
    first, between : seconds to first tokens, and between pieces of a stream.
    texts : answers by request. tokens_in, tokens_out : as the server counts them.
    """

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    tokens_in: int = 0
    tokens_out: int = 0


def requests(count: int) -> list[Arrival]:
    """Return the first requests; more of them begin with the same ones."""
    chance = random.Random(SEED)

    def length(mean: float, deviation: float, least: int, most: int) -> int:
        return max(least, min(most, round(chance.lognormvariate(mean, deviation))))

    made = []
    for number in range(count):
        size, tokens = length(*PROMPT), length(*ANSWER)
        letters = random.Random(number)
        made.append(Arrival("".join(letters.choice(LETTERS) for _ in range(size)), tokens))
    return made


async def ask(port: int, model: str, number: int, asked: Arrival, seen: Seen) -> None:
    """Send a request and read its stream."""
    body = {
        "model": model, "prompt": asked.prompt, "max_tokens": asked.tokens, "temperature": 0.8,
        "seed": number, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    started = before = time.perf_counter()
    text, pieces = "", 0
    try:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        if int(answer.split(b" ", 2)[1]) != 200:
            raise RuntimeError((await reader.read())[:300].decode(errors="replace"))
        async for event in _events(reader):
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            if event.get("usage"):
                seen.tokens_in += event["usage"]["prompt_tokens"]
                seen.tokens_out += event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                now = time.perf_counter()
                (seen.between if pieces else seen.first).append(now - before)
                before, pieces = now, pieces + 1
                text += choice["text"]
    except Exception as error:
        after = time.perf_counter() - started
        seen.errors.append(f"{type(error).__name__} after {after:.1f} s: {error}")
        return
    finally:
        writer.close()
    seen.texts[number] = text


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a chunked stream."""
    rest = ""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        rest += (await reader.readexactly(size + 2))[:-2].decode()
        *whole, rest = rest.split("\n\n")
        for event in whole:
            if event.startswith("data: ") and event != "data: [DONE]":
                yield json.loads(event[6:])


async def load(port: int, model: str, clients: int, asked: list[Arrival]) -> tuple[float, Seen]:
    """Return seconds until all requests were answered, and what was seen."""
    seen, numbers = Seen(), iter(range(len(asked)))

    async def client() -> None:
        for number in numbers:
            await ask(port, model, number, asked[number], seen)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - started, seen


def shown(seconds: list[float]) -> str:
    """Return the median and the 99th of 100, in milliseconds."""
    ordered = sorted(seconds) or [math.nan]
    return f"{ordered[len(ordered) // 2] * 1e3:.0f}, {ordered[int(len(ordered) * 0.99)] * 1e3:.0f}"


def rows(port: int, options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Yield a line of the table for each number of clients, and whether all was right."""
    texts: dict[int, str] = {}
    asyncio.run(load(port, options.model, 4, requests(4)))  # connections and caches are there
    for clients in map(int, options.clients.split(",")):
        asked = requests(max(options.least, options.each * clients))
        wall, seen = asyncio.run(load(port, options.model, clients, asked))
        other = [n for n, text in seen.texts.items() if texts.setdefault(n, text) != text]
        for line in [*seen.errors[:3], *(f"another text for request {n}" for n in other[:3])]:
            print(line, file=sys.stderr, flush=True)
        line = (
            f"| {clients} | {len(asked)} | {seen.tokens_in / wall:.0f} | "
            f"{seen.tokens_out / wall:.0f} | {shown(seen.first)} | {shown(seen.between)} |"
        )
        yield line, not (seen.errors or other)


def main() -> int:
    """Serve, load, print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--clients", default="1,32,128,256", help="numbers of clients")
    parser.add_argument("--each", type=int, default=3, help="requests a client")
    parser.add_argument(
        "--on-device", action="store_true", help="make synthetic weights on the GPU"
    )
    parser.add_argument("--least", type=int, default=8, help="requests of a table's line at least")
    options, flags = parser.parse_known_args()  # others are of `cortiq serve`
    made = [str(Path(__file__).with_name("served_on_device.py"))]
    start = [sys.executable, *(made if options.on_device else ["-m", "cortiq"])]
    command = [*start, "serve", options.model, "--port", "0", *flags]
    started = time.perf_counter()
    server = subprocess.Popen([*command, "--waiting", "4096"], stderr=subprocess.PIPE, text=True)
    right = False
    try:
        port = address(server)
        if port:
            print(f"ready after {time.perf_counter() - started:.1f} s\n", flush=True)
            print("| clients | requests | tokens/s in | out | to the first, ms | between, ms |")
            print("|---|---|---|---|---|---|", flush=True)
            right = True
            for line, good in rows(port, options):
                print(line, flush=True)
                right = right and good
    finally:
        server.terminate()
        server.wait(60)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
