"""Measure memory and decode speed with rows behind attention windows dropped or kept.

python benchmarks/windows.py [MODEL] [--rows 3000]: what a sequence takes at several lengths, what
one of so many rows holds, and processor time of a decoded token, the least of several turns in
which both take part.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import cortiq
from cortiq.backend import Argmax, Batch, Row, State

TOKENS, TURNS, CHUNK = 8, 12, 256
MIB = 1 << 20


def fed(executable: Any, rows: int) -> State:
    """Return a sequence of random ids."""
    ids = np.random.default_rng(1).integers(0, 1000, rows).tolist()
    state = executable.open(executable.program.context)
    for start in range(0, rows, CHUNK):
        part = enumerate(ids[start : start + CHUNK], start)
        batch = Batch([Row(state, position, token) for position, token in part])
        executable.forward(batch).result()
    return state


def decoded(executable: Any, state: State) -> tuple[float, list[int]]:
    """Return processor seconds per token, and the tokens; the sequence is reset afterwards."""
    token, found, length = 1, [], state.length()
    started = time.process_time()
    for position in range(length, length + TOKENS):
        rows = [Row(state, position, token, (Argmax(),))]
        token = executable.forward(Batch(rows)).result().rows[0][Argmax()]
        found.append(token)
    seconds = (time.process_time() - started) / TOKENS
    state.rewind(length)
    return seconds, found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="gemma3-270m")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--backend", default="cpu")
    options = parser.parse_args()
    how = {"backend": options.backend, "threads": 1}
    models = [cortiq.load(options.model, full_windows=full, **how) for full in (False, True)]
    executables: list[Any] = [model.executable for model in models]
    given, kept = executables
    print(f"windows given up behind: {sorted(set(given.windows.values()))}")
    for rows in (1024, 4096, 8192, 32768):
        sizes = [executable.state_bytes(rows) / MIB for executable in (given, kept)]
        print(f"{rows:6} rows: {sizes[0]:8.1f} MiB of {sizes[1]:8.1f}, {sizes[0] / sizes[1]:.2f}")
    first = fed(given, options.rows)
    states = [first, fed(kept, options.rows)]
    held = [executable.held_bytes() / MIB for executable in (given, kept)]
    print(f"held after {options.rows} rows: {held[0]:.1f} MiB of {held[1]:.1f}")
    best, texts = [float("inf")] * 2, []
    for turn in range(TURNS):
        for which in (0, 1) if turn % 2 else (1, 0):
            seconds, text = decoded((given, kept)[which], states[which])
            best[which] = min(best[which], seconds)
            texts.append(text)
    assert all(text == texts[0] for text in texts)
    print(f"a token: {best[0] * 1e3:.2f} ms, kept {best[1] * 1e3:.2f}: {best[1] / best[0]:.3f}x")


if __name__ == "__main__":
    main()
