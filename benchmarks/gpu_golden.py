"""Digests of `synthetic:llama3-8b` from the CPU backend, for `gpu.py` to be held against.

    python benchmarks/gpu_golden.py [--model synthetic:llama3-8b?format=w8] [--out FILE]

Computes the last digest of each run that `gpu_models.py` times: the same prompt, then the same
first token and number of greedy steps. In a batch every sequence is the same, and a row does not
depend on its batch, so one sequence stands for all. Takes 10 GB of memory and about an hour on
two cores; `golden_8b.json` beside this file is what it wrote.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortiq.backend import (
    Argmax,
    Batch,
    BatchResult,
    CompileOptions,
    Digest,
    Drawn,
    Row,
    Status,
    Want,
)
from cortiq.backend.admission import vocabulary_of
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic

GOLDEN = Path(__file__).with_name("golden_8b.json")
MODEL = "synthetic:llama3-8b?format=w8"
WANTS = (Argmax(), Digest("logits"))
PROMPT = 2048
RUNS = ((1, 128, 256), (32, 512, 64), (1, 4096, 64))
"""Sequences, positions of the prompt, timed steps."""
WARM = 8
"""Steps before those that are timed."""
FIRST = 5
"""Token of the first step; all others are drawn."""
LIMIT = 8192


def ids_of(length: int, vocabulary: int) -> list[int]:
    """Return the prompt's ids."""
    return [(7919 * i + 13) % min(32000, vocabulary) for i in range(length)]


def prompt(executable: Any, state: Any, start: int, stop: int) -> Mapping[Want, Any]:
    """Compute the prompt's positions from `start` on; return its last row's result."""
    ids = ids_of(stop, vocabulary_of(executable.program))[start:]
    rows = RowRuns([RowRun(state, start, ids, [WANTS])])
    return completed(executable.forward(Batch(rows)).result()).rows[-1]


def completed(result: BatchResult) -> BatchResult:
    """Return a result, if all its sequences were computed."""
    for outcome in result.outcomes.values():
        if outcome.status is not Status.COMPLETED:
            raise RuntimeError(f"{outcome.status.value}: {outcome.reason}")
    return result


def text_of(row: Mapping[Want, Any]) -> str:
    """Return a row's digest in hexadecimal."""
    return "".join(f"{word:08x}" for word in row[Digest("logits")])


def name_of(sequences: int, context: int, steps: int) -> str:
    """Return a run's name in the file."""
    return f"batch {sequences}, context {context}, {steps} steps"


def main() -> None:
    """Compute and write."""
    from cortiq_cpu.backend import CpuBackend

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    options = parser.parse_args()
    start, found = time.perf_counter(), {}

    def note(name: str, row: Mapping[Want, Any]) -> None:
        found[name] = text_of(row)
        print(f"[{time.perf_counter() - start:5.0f} s] {name}: {found[name]}", flush=True)
        options.out.write_text(json.dumps({"model": options.model, **found}, indent=1) + "\n")

    loaded = load_program(open_synthetic(options.model), context=LIMIT)
    executable = CpuBackend().compile(loaded.program, loaded.weights, CompileOptions())
    state, at = executable.open(LIMIT), 0
    for sequences, context, steps in sorted([*RUNS, (0, PROMPT, 0)], key=lambda run: run[1]):
        for stop in [*range(at + 256, context, 256), context]:
            row = prompt(executable, state, at, stop)
            at = stop
        if not steps:
            note(f"prompt of {context}", row)
            continue
        fork = state.fork()
        row = completed(executable.forward(Batch([Row(fork, context, FIRST, WANTS)])).result())
        for position in range(context + 1, context + steps + WARM + 1):
            row = executable.forward(Batch([Row(fork, position, Drawn(0), WANTS)])).result()
        note(name_of(sequences, context, steps), completed(row).rows[0])
        fork.release()


if __name__ == "__main__":
    main()
