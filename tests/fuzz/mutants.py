"""Mutants of JSON values and of bytes, and the loop that tries them."""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from fuzzing import mutate

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 1.5, 2**31, 2**63, -(2**63), 10**30, 1e308, float("nan"),
    float("inf"), "", "a", "x" * 300, "\x00", "\x1b[2J", "é漢🎉", "{{ 1 }}", "0", "null", "../../x",
    [], {}, [[]], {"": ""}, [None] * 3, ["a"] * 50, {"type": "object"}, {"$ref": "#"},
]  # fmt: skip
"""Values that readers stumble over."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or object of a value, with each of its indices or keys."""
    pending = [value]
    while pending:
        item = pending.pop()
        keys = list(item) if isinstance(item, dict) else list(range(len(item)))
        for key in keys:
            yield item, key
            if isinstance(item[key], dict | list):
                pending.append(item[key])


def mutated_json(value: Any, rng: random.Random) -> Any:
    """A copy with one to three places changed, moved, doubled, wrapped or gone."""
    made = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        found = list(places(made))
        if not found:
            return made
        holder, key = rng.choice(found)
        match rng.randrange(6):
            case 0 | 1:
                holder[key] = copy.deepcopy(rng.choice(ODD))
            case 2:
                del holder[key]
            case 3:
                other, at = rng.choice(found)
                if isinstance(other, list) or at in other:
                    holder[key] = copy.deepcopy(other[at]) if _there(other, at) else None
            case 4:
                for _ in range(rng.choice([1, 2, 300])):
                    holder[key] = [holder[key]]
            case 5:
                new = rng.choice([*ODD[16:26], "n", "model", "stream"])
                if isinstance(holder, dict):
                    holder[str(new)] = copy.deepcopy(rng.choice(ODD))
                else:
                    holder.insert(key, copy.deepcopy(rng.choice(ODD)))
    return made


def _there(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def mutated_text(data: bytes, rng: random.Random) -> bytes:
    """A JSON text as a mutant of its value, or of its bytes."""
    if rng.random() < 0.3:
        return mutate(data, rng, [b"{", b"]", b'"', b"\\ud800", b"\xff", b"9" * 50])
    return json.dumps(mutated_json(json.loads(data), rng)).encode("utf-8", "surrogatepass")


def rounds(
    try_one: Callable[[random.Random], str],
    seed: int,
    *,
    count: int | None = None,
    seconds: float | None = None,
    first: int = 0,
) -> Counter[str]:
    """Try mutants, each drawn from its own generator; how often each outcome came.

    What escapes has the round in a note: the seed and the round alone make the mutant.
    """
    outcomes: Counter[str] = Counter()
    end, number = time.monotonic() + (seconds or 0.0), first
    while (count is not None and number < first + count) or (
        seconds is not None and time.monotonic() < end
    ):
        try:
            outcomes[try_one(random.Random(f"{seed} {number}"))] += 1
        except BaseException as error:
            error.add_note(f"--seed {seed} --first {number}")
            raise
        number += 1
    return outcomes


def main(doc: str, run: Callable[[argparse.Namespace], Counter[str]]) -> None:
    """The command line that the fuzzers share."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="round to begin at")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    outcomes = run(options)
    print(f"{outcomes.total()} mutants: {dict(outcomes.most_common())}")
