"""Measure bounded attention: perplexity beside full attention, time and memory far into a text.

    python benchmarks/bounded_attention.py quality MODEL TEXT [REWRITE ...] [--windows N]
    python benchmarks/bounded_attention.py flat [REWRITE] [--positions N] [--backend NAME] [--jump]

`quality` scores windows of 512 tokens and counts those from row 256 on, in full and with each
rewriting, whose layers are exact up to there (`seal=256`) or not at all. `flat` computes rows of a
synthetic model and prints the time of a row alone, that of the fastest tenth, and the memory of the
sequence at powers of ten. From 10,000 rows on with `--jump` the rows between are not computed: the
sequence is exported, and imported as one of that length. Needs plugins/cortiq-bounded installed.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import cortiq
from cortiq.backend import Argmax, Batch, ExportedState, Row, Status
from cortiq.models import load_program
from cortiq.models.rewriting import rewritten
from cortiq.models.synthetic import open_synthetic
from cortiq.placement.place import place
from cortiq.plugins import default_plugins

WINDOW, FIRST = 512, 256
ALONE, CHUNK, JUMP_FROM = 200, 512, 10_000
MODEL = "synthetic:tiny-llama?seed=1&format=w8"
REWRITES = (
    "", *(f"nystrom:seal=256,landmarks={m}" for m in (8, 16, 32)),
    "nystrom:seal=256,rectifier=fm", "nystrom:seal=256,exact=32", "nystrom:seal=256,reseal=128",
    "swa_sink_v1:window=128,sinks=0",
)  # fmt: skip


def asked(text: str) -> tuple[str, ...]:
    """Return the option `rewrite` of a text, which is empty for none."""
    return (text,) if text else ()


def quality(model: str, text: str, windows: int, rewrites: tuple[str, ...]) -> None:
    """Print the perplexity of each rewriting over the rows that are not exact in all of them."""
    plain = 0.0
    for rewrite in ("", *filter(None, rewrites)):
        started = time.perf_counter()
        with cortiq.load(model, rewrite=asked(rewrite)) as opened:
            score = opened.score(text, window=WINDOW, windows=windows)
        rows = [nll for at, nll in enumerate(score.token_nll) if at % score.window >= FIRST]
        found = math.exp(sum(rows) / len(rows))
        plain = plain or found
        seconds = time.perf_counter() - started
        name = rewrite or "full attention"
        print(f"{name:50} {found:9.4f} {found / plain:7.4f}  {len(rows)} rows, {seconds:.0f} s")


def flat(rewrite: str, positions: int, name: str, jump: bool) -> None:
    """Print the time of a row and the memory of its sequence at powers of ten."""
    plugins, loaded = default_plugins(), load_program(open_synthetic(MODEL))
    program = replace(loaded.program, context=positions + ALONE)
    made = rewritten(program, loaded.weights, asked(rewrite), plugins.rewrites)
    executable: Any = place(
        plugins.backends[name], made.program, made.weights,
        fallback=plugins.backends["reference"],
    )  # fmt: skip
    state = executable.open(positions + ALONE)
    print(f"{rewrite or 'full attention'} on {name}")
    for mark in (10**n for n in range(3, 10) if 10**n <= positions):
        if jump and mark > JUMP_FROM:
            state = moved(executable, state, mark, positions + ALONE)
        while state.length() < mark:
            compute(executable, state, min(CHUNK, mark - state.length()))
        seconds = [compute(executable, state, 1) for _ in range(ALONE)]
        held = executable.state_bytes(state.length())
        each = sorted(seconds)[ALONE // 10] * 1e3
        print(f"{mark:10} rows  {each:8.3f} ms a row  {held / 1e6:9.3f} MB", flush=True)


def moved(executable: Any, state: Any, length: int, limit: int) -> Any:
    """Return a sequence that goes on as this one does, but is so many rows long."""
    exported = state.export()
    tokens = np.zeros(length, np.int32)
    lengths = dict.fromkeys(exported.lengths, length)
    state.release()
    return executable.import_(ExportedState(lengths, tokens, exported.slots), limit)


def compute(executable: Any, state: Any, count: int) -> float:
    """Compute the next rows of a sequence, the last with its token; return the seconds."""
    start = state.length()
    wants = [()] * (count - 1) + [(Argmax(),)]
    rows = [Row(state, start + i, (start + i) % 250, want) for i, want in enumerate(wants)]
    started = time.perf_counter()
    outcome = executable.forward(Batch(rows)).result().outcomes[state]
    assert outcome.status is Status.COMPLETED, outcome
    return time.perf_counter() - started


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("quality")
    one.add_argument("model")
    one.add_argument("text", type=Path)
    one.add_argument("--windows", type=int, default=6)
    one.add_argument("rewrites", nargs="*", default=REWRITES)
    two = commands.add_parser("flat")
    two.add_argument("rewrite", nargs="?", default="nystrom:seal=512")
    two.add_argument("--positions", type=int, default=1_000_000)
    two.add_argument("--backend", default="cpu")
    two.add_argument("--jump", action="store_true")
    chosen = parser.parse_args()
    if chosen.command == "quality":
        text = chosen.text.read_text()
        quality(chosen.model, text, chosen.windows, tuple(chosen.rewrites))
    else:
        flat(chosen.rewrite, chosen.positions, chosen.backend, chosen.jump)


if __name__ == "__main__":
    main()
