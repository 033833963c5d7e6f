"""Measure the engine's memory over many requests: `python benchmarks/engine_memory.py [MODEL]`.

Requests of random lengths, priorities and ways to draw, some of them drafted for, some cancelled,
with kept prefixes. After a tenth of them memory must not grow any more.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cortiq
from cortiq.engine.drafting import FixedDepth, Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.request import Request, make_request
from cortiq.engine.scheduler import EngineOptions
from cortiq.options import GenerateOptions

PAGE = 4096
LONGEST = 60
"""Ids of a prompt at most."""


class RepeatingDrafter:
    """A drafter that guesses that the last ids come again."""

    name = "guess"
    wants = ()

    def open(self, task: object) -> RepeatingDrafter:
        """Begin on a sequence."""
        return self

    def propose(self, ids: Sequence[int], count: int) -> object:
        """Return the ids before the last ones."""
        from cortiq.engine.drafting import Draft

        return Draft(tuple(ids[-count - 1 : -1]))

    def observe(self, position: int, rows: object, ids: object) -> None:
        """Ignore the observed tokens."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def resident() -> int:
    """Return bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def requests(model: cortiq.Model, count: int, longest: int) -> list[Request]:
    """Return requests of random lengths; a third of them begin alike."""
    chance = random.Random(1)
    head = [chance.randrange(300) for _ in range(longest)]
    made = []
    for number in range(count):
        length = chance.randrange(1, longest)
        ids = [chance.randrange(300) for _ in range(length)]
        if number % 3 == 0:
            ids[: length // 2] = head[: length // 2]
        options = GenerateOptions(
            max_tokens=chance.randrange(1, longest // 2), temperature=chance.choice([0.0, 1.0]),
            seed=number, repetition_penalty=chance.choice([1.0, 1.2]),
        )  # fmt: skip
        made.append(make_request(ids, options, model.program, ()))
    return made


def serve(model: cortiq.Model, wanted: list[Request], sequences: int = 16) -> list[int]:
    """Serve the requests; return the memory after every tenth of them."""
    chance, sizes, done = random.Random(2), [], 0
    cache = PrefixCache(model.executable, 8)
    drafted = Speculation(RepeatingDrafter(), lambda prompt_tokens: FixedDepth(3))
    options = EngineOptions(sequences=sequences)
    with Engine(model.executable, model.tokenizer, options=options, prefixes=cache) as engine:
        while done < len(wanted) or not engine.idle:
            while done < len(wanted) and len(engine.waiting) < sequences:
                drafts = drafted if done % 4 == 0 else None
                one = engine.submit(wanted[done], priority=done % 3, speculation=drafts)
                done += 1
                if chance.random() < 0.05:
                    one.cancel()
                if done % max(1, len(wanted) // 10) == 0:
                    sizes.append(resident())
                    print(f"{done} requests: {sizes[-1] / 1e6:.1f} MB", file=sys.stderr)
            engine.step()
    cache.clear()
    return [*sizes, resident()]


def main() -> None:
    """Print memory after every tenth."""
    name = sys.argv[1] if len(sys.argv) > 1 else "synthetic:tiny-llama"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    with cortiq.load(name, context=1024) as model:
        start = time.perf_counter()
        sizes = serve(model, requests(model, count, LONGEST))
        seconds = time.perf_counter() - start
    told = " ".join(f"{size / 1e6:.1f}" for size in sizes)
    print(f"{name}: {count} requests in {seconds:.0f} s; MB after every tenth: {told}")
    print(f"growth after the first tenth: {(sizes[-1] - sizes[0]) / 1e6:+.2f} MB")


if __name__ == "__main__":
    main()
