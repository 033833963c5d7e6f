"""Which launches warming collects, and which serving makes: run without the interpreter, no GPU.

Every launch is recorded instead of run, as `tools/lint_triton.py` does. Prints the launches of
serving that warming had not met.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import product

os.environ["TRITON_INTERPRET"] = "0"  # sizes of tiles are those of a device

import torch

from cortiq.backend import (
    Argmax,
    Batch,
    CompileOptions,
    Digest,
    Draw,
    DrawnLogit,
    Row,
    Status,
    Top,
)
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.masks import mask_of
from cortiq.numerics.sampling import Sampling
from cortiq_triton import compiled, hopper_products, warm
from cortiq_triton.executable import TritonExecutable

DIGEST = Digest("logits")
FILTERS = [
    {"top_k": k, "top_p": p, "min_p": m, "logit_bias": bias, "repetition_penalty": r}
    for k, p, m, bias, r in product((0, 3), (1.0, 0.7), (0.0, 0.2), ({}, {1: 0.5}), (1.0, 1.2))
]
WANTS = (
    (Argmax(), DIGEST),
    (Draw(Sampling(temperature=0.7, seed=3)), DIGEST),
    (Draw(Sampling(temperature=0.7, top_p=0.8, seed=4)), DIGEST, DrawnLogit(), Top(2)),
    (Draw(Sampling(temperature=0.7, frequency_penalty=0.2)), DIGEST),
)


class Recorder:
    """Stands in for `language.launch`: what decides which binary a launch takes."""

    def __init__(self):
        self.found = set()

    def __call__(self, kernel, grid, *given, warps=4, stages=3, early=False, **how):
        kinds = []
        for parameter, value in zip(kernel.params, given, strict=False):
            if isinstance(value, torch.Tensor):
                kinds.append((value.dtype, value.data_ptr() % 16 == 0))
            else:
                kinds.append(0 if parameter.do_not_specialize else compiled._kind(value))
        constants = tuple((name, getattr(v, "__name__", v)) for name, v in how.items())
        name = f"gluon {kernel.__name__}" if kernel.is_gluon() else kernel.__name__
        self.found.add((name, constants, (warps, stages, early), tuple(kinds)))


def recorded(run):
    """Return the launches of a function."""
    recorder, before = Recorder(), {}
    for name, module in list(sys.modules.items()):
        if name.startswith("cortiq_triton.") and hasattr(module, "launch"):
            before[module] = module.launch
            if name != "cortiq_triton.compiled":
                module.launch = recorder
    run()
    for module, launch in before.items():
        module.launch = launch
    return recorder.found


def serving(executable, everywhere):
    """Prompts of many lengths, perhaps with wants everywhere, and steps with many wants."""

    def run():
        for length in (1, 3, 9, 15, 17, 40, 70, 120):
            state = executable.open(256)
            wants = WANTS[length % len(WANTS)]
            rows = [Row(state, i, 1, wants if i == length - 1 else ()) for i in range(length)]
            executable.forward(Batch(rows)).result()
            state.release()
        states = [executable.open(256) for _ in range(4)]
        rows = [Row(s, i, 1, WANTS[0] if everywhere else ()) for s in states for i in range(200)]
        executable.forward(Batch(rows)).result()
        for state in states:
            state.release()
        for count in (1, 2, 3, 7, 9, 12, 20, 33, 50, 100, 129, 200):
            states = [executable.open(256) for _ in range(count)]
            rows = [Row(s, 0, 1, WANTS[(i + count) % 4]) for i, s in enumerate(states)]
            executable.forward(Batch(rows)).result()
            for state in states:
                state.release()
        width = executable.program.trunk.values["logits"].shape[0]
        for number, wants in enumerate(every_wants(width)):
            of_each(executable, wants, number)

    return run


def every_wants(width):
    """Every set of options of a draw, and more that rows may want."""
    masks = (None, mask_of(range(0, width, 3), width))
    drawn = [Draw(Sampling(seed=5, **each), mask=mask) for each in FILTERS for mask in masks]
    likely = product((1.0, 0.3), (1, 3, 20))
    return [
        *((draw, DIGEST) for draw in drawn),
        *((Argmax(), DrawnLogit(scale), Top(n)) for scale, n in likely),
    ]


def of_each(executable, wants, number):
    """A step, a round, a piece of a prompt beside a row, and large batches, with these wants."""
    for counts in ((1, 1), (2, 3), (3, 2), (20, 1), *([(600, 1), (590, 2)] if number < 2 else [])):
        states = [executable.open(700) for _ in counts]
        rows = []
        for state, count in zip(states, counts, strict=True):
            few = count < 9
            rows += [Row(state, i, 1, wants if few or i == count - 1 else ()) for i in range(count)]
        outcomes = executable.forward(Batch(rows)).result().outcomes.values()
        assert all(outcome.status is Status.COMPLETED for outcome in outcomes)
        for state in states:
            state.release()


def on_hopper():
    """Have products as on a Hopper GPU, on which 640 rows of a narrow weight have few tiles."""
    hopper_products.available = lambda: True
    hopper_products.processors = lambda: 12


def opened(name, layout, wide):
    """Return a model; where it is wide, of the widths that kernels for Hopper take."""
    found = open_synthetic(f"synthetic:{name}?format={layout}")
    if wide:
        sizes = {"hidden_size": 512, "intermediate_size": 768}
        found = replace(found, config={**found.config, **sizes})
    return load_program(found, context=None)


def main():
    name, layout, *others = sys.argv[1:]
    if "hopper" in others:
        on_hopper()
    loaded = opened(name, layout, "hopper" in others)
    options = CompileOptions(extra={"graphs": True})
    executable = TritonExecutable(loaded.program, loaded.weights, options, "cpu")
    executable.batch_rows = 2048
    executable.prepare(256)
    compiled._collected.append({})
    ahead = recorded(lambda: warm.walk(executable))
    compiled._collected.pop()
    torch.empty, torch.Tensor.new_empty = torch.zeros, torch.Tensor.new_zeros
    torch.empty_like = torch.zeros_like
    late = recorded(serving(executable, "hopper" in others)) - ahead
    for launch in sorted(late, key=str):
        print(*launch)
    gluon = sum(name.startswith("gluon ") for name, *_ in ahead)
    print(f"{len(ahead)} launches ahead, {len(late)} late; {gluon} Gluon")
    return int(bool(late) or not ahead)


if __name__ == "__main__":
    sys.exit(main())
