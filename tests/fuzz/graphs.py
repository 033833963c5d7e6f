"""Random programs under random schedules on every backend: `python -m fuzz.graphs --seconds N`.

Each round draws a program and a walk (batches, rewinds, forks, snapshots, moves between backends,
failures) over one backend and the reference, and holds every sequence to what the reference makes
of its ids alone. A seed names a round: `--first SEED --count 1` repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence

from graphs import Bound, programs
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from installed import backends
from walk import Walk, calls

from cortiq.backend import CompileOptions, Executable
from cortiq.plugins import default_plugins


def compiled(name: str, bound: Bound, page_rows: int) -> Executable:
    """Compile a program on a backend, for one thread."""
    options = CompileOptions(threads=1, page_rows=page_rows)
    return default_plugins().backends[name].compile(bound.program, bound.weights, options)


def run(name: str, number: int) -> None:
    """Run the round of a seed on a backend; AssertionError if a bit differs."""

    @seed(number)
    @settings(
        max_examples=1, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(programs(blocks=(1, 2)), calls(), st.integers(0, 2**20), st.sampled_from([5, 16, 64]))
    def walk(bound: Bound, taken: list, chance: int, page_rows: int) -> None:
        executables = [compiled(n, bound, page_rows) for n in (name, "reference")]
        oracle = compiled("reference", bound, 64)
        try:
            Walk(executables, oracle, chance).take(taken)
        finally:
            for executable in (*executables, oracle):
                executable.close()

    walk()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds until the time or the count is reached; print what was run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=sys.maxsize, help="rounds at most")
    parser.add_argument("--first", type=int, default=0, help="seed of the first round")
    parser.add_argument("--backends", nargs="+", help="all that are installed if not given")
    options = parser.parse_args(arguments)
    names = options.backends or [name for name in backends() if name != "reference"]
    end, done = time.monotonic() + options.seconds, 0
    for number in itertools.count(options.first):
        if done >= options.count or time.monotonic() > end:
            break
        for name in names:
            try:
                run(name, number)
            except Exception as error:
                error.add_note(f"--backends {name} --first {number} --count 1")
                raise
        done += 1
    print(f"{done} programs on each of {', '.join(names)}: every bit the reference's")
    return int(done == 0)


if __name__ == "__main__":
    sys.exit(main())
