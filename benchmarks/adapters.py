"""Measure what adapters cost a decoding step: many requests, each with an adapter of its own.

Steps with and without adapters in turn, in processor time of one thread: a shared machine disturbs
both alike. Numbers are random; they change no time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import cortiq
from cortiq.backend import Argmax, Batch, Executable, Row, State
from cortiq.ir.overlays import OverlayChange, bank_name, changeable, overlay_inputs, with_overlays
from cortiq.model.model import Model
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert

POSITION, ROUNDS = 64, 12
WANTS = (Argmax(),)


def banks(model: Model, targets: list[str], members: int, rank: int) -> dict[str, Weight]:
    """Give the model's executable random adapters; return their banks."""
    random, changes, made = np.random.default_rng(1), {}, {}
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


def step(executable: Executable, states: list[State], at: int, adapters: bool) -> float:
    """Return the processor time of a step of all sequences."""
    rows = [
        Row(state, at, 5, WANTS, overlay_inputs(number) if adapters else {})
        for number, state in enumerate(states, 1)
    ]
    started = time.process_time()
    executable.forward(Batch(rows)).result()
    return time.process_time() - started


def main() -> None:
    """Print the times of steps, and what adapters add."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--targets", default="q_proj,v_proj")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    given = parser.parse_args()
    with cortiq.load(given.model, backend="cpu", threads=1, context=256) as model:
        made = banks(model, given.targets.split(","), 1 + given.requests, given.rank)
        states = [model.executable.open(256) for _ in range(given.requests)]
        for state in states:
            prompt = [Row(state, at, 5, ()) for at in range(POSITION)]
            model.executable.forward(Batch(prompt)).result()
        times: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(2 * ROUNDS + 2):
            spent = step(model.executable, states, POSITION + turn, turn % 2 == 1)
            if turn > 1:
                times[turn % 2 == 1].append(spent)
    plain, varied = (statistics.median(times[kind]) for kind in (False, True))
    size = sum(weight.nbytes for weight in made.values()) / 2**20
    print(f"{given.targets}: {size:.0f} MiB of banks")
    print(f"without adapters {1e3 * plain:.1f} ms a step, with {given.requests} of them", end=" ")
    print(f"{1e3 * varied:.1f} ms: {100 * (varied / plain - 1):+.0f}%")


if __name__ == "__main__":
    main()
