"""Measure what adapters cost a decoding step: many requests, each with an adapter of its own.

Steps with and without adapters in turn, and prompts of all requests in one batch: a shared machine
disturbs both alike. On the CPU it is the processor time of one thread, with `--backend triton` wall
time. Numbers are random; they change no time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cortiq
from cortiq.backend import Argmax, Batch, Executable, Row, State, Status
from cortiq.ir.overlay_graphs import with_overlays
from cortiq.ir.overlays import OverlayChange, bank_name, changeable, overlay_inputs
from cortiq.model.model import Model
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert

POSITION, ROUNDS = 64, 12
WANTS = (Argmax(),)
Clock = Callable[[], float]


def banks(model: Model, targets: list[str], members: int, rank: int) -> dict[str, Weight]:
    """Give the model's executable random adapters; return their banks."""
    random, made = np.random.default_rng(1), {}
    changes: dict[tuple[str, bool], OverlayChange] = {}
    for (name, table), node in changeable(model.program).items():
        op: Any = node.op
        if table or not any(target in name for target in targets):
            continue
        changes[name, table] = OverlayChange(rank)
        for part, shape in (("a", (rank, op.in_width)), ("b", (op.out_width, rank))):
            size = (members * shape[0], shape[1])
            values = Weight.from_floats(random.normal(size=size).astype(np.float32) * 0.1)
            made[bank_name(name, part)] = convert(values, "w16", name)
    program = with_overlays(model.program, members, changes)
    model.executable.vary(program, {**model._source.weights, **made})
    return made


def batch_seconds(
    executable: Executable, states: list[State], at: int, rows: int, adapters: bool, clock: Clock
) -> float:
    """Return the time of a batch with so many rows of every sequence."""
    batch = [
        Row(state, at + i, 5, WANTS if i == rows - 1 else (), given)
        for number, state in enumerate(states, 1)
        for given in [overlay_inputs(number) if adapters else {}]
        for i in range(rows)
    ]
    started = clock()
    result = executable.forward(Batch(batch)).result()
    spent = clock() - started
    assert {outcome.status for outcome in result.outcomes.values()} == {Status.COMPLETED}
    return spent


def measured(
    model: Model, requests: int, rows: int, position: int, clock: Clock
) -> tuple[float, float]:
    """Return the median times of batches of so many rows a sequence, without adapters and with."""
    times: dict[bool, list[float]] = {False: [], True: []}
    rounds, executable = (ROUNDS, model.executable) if rows == 1 else (3, model.executable)
    states: list[State] = []
    for turn in range(2 * rounds + 2):
        if not states or rows > 1:
            for state in states:
                state.release()
            states = [executable.open(256) for _ in range(requests)]
            if position:
                batch_seconds(executable, states, 0, position, False, clock)
        at = position + (turn if rows == 1 else 0)
        spent = batch_seconds(executable, states, at, rows, turn % 2 == 1, clock)
        if turn > 1:
            times[turn % 2 == 1].append(spent)
    for state in states:
        state.release()
    return statistics.median(times[False]), statistics.median(times[True])


def main() -> None:
    """Print the times of steps, and what adapters add."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--targets", default="q_proj,v_proj")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    given = parser.parse_args()
    clock = time.process_time if given.backend == "cpu" else time.perf_counter
    options: Any = {"threads": 1} if given.backend == "cpu" else {}
    with cortiq.load(given.model, backend=given.backend, context=256, **options) as model:
        made = banks(model, given.targets.split(","), 1 + given.requests, given.rank)
        size = sum(weight.nbytes for weight in made.values()) / 2**20
        print(f"{given.targets}: {size:.0f} MiB of banks")
        for what, rows, position in (("step", 1, POSITION), (f"prompt of {POSITION}", POSITION, 0)):
            plain, varied = measured(model, given.requests, rows, position, clock)
            more = f"{100 * (varied / plain - 1):+.0f}%"
            print(f"a {what}: {1e3 * plain:.1f} ms, with adapters {1e3 * varied:.1f} ms: {more}")


if __name__ == "__main__":
    main()
