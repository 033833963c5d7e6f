"""Speed, memory and start-up of the reference on the two real models, as one table.

    python benchmarks/reference.py [--threads N] [--repeat N] [--json] [MODEL ...]

Every figure is taken in a process of its own, on a machine that should do nothing else. Beside the
wall time stands the processor time of all threads (user and system), which a busy machine disturbs
less. Several runs: the fastest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cortiq.model.source import open_source
from cortiq.options import LoadOptions

MODELS = ("smollm2", "gemma3-270m")
TEXT = Path("/usr/share/common-licenses/GPL-3")
SPEED_ROWS, SPEED_STEPS = 512, 16
RESIDENT_ROWS, RESIDENT_STEPS = 64, 8
HELP_RUNS = 5


def clocks() -> tuple[float, float]:
    """Return (wall, processor) seconds."""
    times = os.times()
    return time.perf_counter(), times.user + times.system


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Run some work; return its (wall, processor) seconds."""
    before = clocks()
    work()
    after = clocks()
    return after[0] - before[0], after[1] - before[1]


def speed(model: str, threads: int) -> dict[str, float]:
    """Return tokens a second of a 512-token prefill and of greedy decoding after it."""
    import cortiq
    from cortiq.backend import Argmax
    from cortiq.engine.session import Session

    wants = (Argmax(),)
    with cortiq.load(model, backend="reference", threads=threads) as loaded:
        ids = prompt_of(loaded.tokenizer, SPEED_ROWS)
        with Session(loaded.executable, SPEED_ROWS + SPEED_STEPS) as session:
            session.read(session.feed(ids[:8], wants))  # pages of the file, threads, tables
            session.length = session.state.rewind(0)
            row = {}

            def prefill() -> None:
                row.update(session.read(session.prefill(ids, wants, 256)))

            def decode() -> None:
                for _ in range(SPEED_STEPS):
                    row.update(session.read(session.feed([int(row[Argmax()])], wants)))

            first, then = timed(prefill), timed(decode)
    return {
        "prefill tok/s": SPEED_ROWS / first[0],
        "prefill tok/cpu-s": SPEED_ROWS / first[1],
        "decode tok/s": SPEED_STEPS / then[0],
        "decode tok/cpu-s": SPEED_STEPS / then[1],
    }


def prompt_of(tokenizer: object, rows: int) -> list[int]:
    """Return the first tokens of a long text."""
    return tokenizer.encode(TEXT.read_text())[:rows]  # type: ignore[attr-defined]


def resident(model: str, threads: int) -> dict[str, float]:
    """Return growth of resident memory from "tokenizer loaded" to 64 tokens prefilled and 8
    decoded.

    Resident memory is VmRSS, pages of the mapped file included; the peak is VmHWM, set back at the
    beginning. Both as multiples of the file's size.
    """
    from cortiq.backend import Argmax, CompileOptions
    from cortiq.engine.session import Session
    from cortiq_reference.backend import ReferenceBackend

    path = model_path(model)
    source = open_source(str(path), LoadOptions())
    ids, wants, size = prompt_of(source.tokenizer, RESIDENT_ROWS), (Argmax(),), path.stat().st_size
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = status("VmRSS")
    options = CompileOptions(threads=threads)
    executable = ReferenceBackend().compile(source.program, source.weights, options)
    with Session(executable, RESIDENT_ROWS + RESIDENT_STEPS) as session:
        row = session.read(session.prefill(ids, wants, 256))
        for _ in range(RESIDENT_STEPS):
            row = session.read(session.feed([int(row[Argmax()])], wants))
        after, peak = status("VmRSS"), status("VmHWM")
    executable.close()
    source.close()
    return {
        "file MiB": size / 2**20,
        "resident growth": (after - before) / size,
        "peak growth": (peak - before) / size,
    }


def status(field: str) -> int:
    """Return bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def model_path(model: str) -> Path:
    """Return the file of a known name, fetched if need be, or a path as it is."""
    from cortiq.formats import fetch

    return Path(model) if Path(model).exists() else fetch.pull(model)


def opening(model: str, threads: int) -> dict[str, float]:
    """Return seconds from a name to a tokenizer and a program bound to its weights."""
    path = str(model_path(model))
    wall, processor = timed(lambda: open_source(path, LoadOptions()).close())
    return {"open s": wall, "open cpu-s": processor}


def help_seconds() -> float:
    """Return seconds that `cortiq --help` takes, the fastest of some runs."""
    command = [sys.executable, "-m", "cortiq", "--help"]
    return min(
        timed(lambda: subprocess.run(command, check=True, capture_output=True))[0]
        for _ in range(HELP_RUNS)
    )


FIGURES: dict[str, Callable[[str, int], dict[str, float]]] = {
    "speed": speed,
    "resident": resident,
    "opening": opening,
}
"""Measurements in a process of their own: (model, threads) → figures by name."""
SMALLER_IS_BETTER = ("resident growth", "peak growth", "open s", "open cpu-s")


def in_a_process(figure: str, model: str, threads: int) -> dict[str, float]:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, "--figure", figure, "--threads", str(threads), model]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(made.stdout)


def best_of(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the best of each figure."""
    return {
        name: (min if name in SMALLER_IS_BETTER else max)(run[name] for run in runs)
        for name in runs[0]
    }


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each figure")
    parser.add_argument("--figure", choices=tuple(FIGURES), help="one figure, in this process")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Print the table, or one figure as JSON."""
    chosen = arguments()
    if chosen.figure:
        print(json.dumps(FIGURES[chosen.figure](chosen.models[0], chosen.threads)))
        return
    table = {}
    for model in chosen.models:
        table[model] = {}
        for figure in FIGURES:
            runs = [in_a_process(figure, model, chosen.threads) for _ in range(chosen.repeat)]
            table[model] |= best_of(runs)
    table["cortiq --help"] = {"wall s": help_seconds()}
    if chosen.json:
        print(json.dumps(table, indent=1))
        return
    for model, figures in table.items():
        print(f"{model}, {chosen.threads} threads")
        for name, value in figures.items():
            print(f"    {name:20} {value:10.3f}")


if __name__ == "__main__":
    main()
