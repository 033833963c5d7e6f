"""Launches that serving needs, before anybody waits for them.

Batches of every kind that differ in their kernels are walked through with nothing launched: rows of
decoding steps by the sizes of tiles that suit them, and pieces of prompts and drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cortiq.backend import Argmax, Batch, Digest, Draw, Row, Top, Want
from cortiq.backend.executable import Accepted
from cortiq.numerics.sampling import Sampling
from cortiq_triton.decode import FEWEST_PAGES
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.run import Run

GREEDY: tuple[Want, ...] = (Argmax(), Digest("logits"))
DRAWN: tuple[Want, ...] = (
    Draw(Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.1, presence_penalty=0.1)),
    Digest("logits"),
    Top(2),
)
DECODING = (1, 16, 32, 64, 128, 256)
"""Sequences of a decoding step: others have the kernels of the next larger number."""
PIECES = (2, 5, 12, 16, 32, 64, 128, 512)
"""Rows of one sequence in a batch: drafts that are verified, and pieces of prompts."""


class Scratch:
    """Stands for a sequence where only shapes count."""

    tokens: Sequence[int] = ()
    block_address = 0

    def __init__(self) -> None:
        self.page_addresses = np.zeros(FEWEST_PAGES, np.int64)


def batches(context: int) -> Iterator[tuple[int, int, tuple[Want, ...]]]:
    """Yield sequences, rows of each, and what the last row of each wants."""
    for wants in (GREEDY, DRAWN):
        yield from ((sequences, 1, wants) for sequences in DECODING)
        yield from ((1, rows, wants) for rows in PIECES if rows <= context)


def walk(executable: Any) -> None:
    """Walk through these batches; the entries that rows must supply values for are left out."""
    for name, plan in executable.plans.items():
        if not set(plan.graph.inputs) <= {"token", "position"}:
            continue
        for sequences, rows, wants in batches(executable.program.context):
            _walk(executable, name, sequences, rows, wants if "logits" in plan.graph.values else ())


def _walk(executable: Any, name: str, sequences: int, rows: int, wants: tuple[Want, ...]) -> None:
    accepted, batch = [], []
    for number in range(sequences):
        state: Any = Scratch()
        first = number * rows
        accepted.append(Accepted(state, range(first, first + rows), [0] * rows))
        batch += [Row(state, i, 0, wants if i == rows - 1 else ()) for i in range(rows)]
    plan = executable.plans[name]
    run = Run(plan, Batch(batch, name), accepted, executable.shared, executable.decoder.drawn)
    run.place(
        RowBuffer(executable.device, turns=1), [-1] * len(batch), FEWEST_PAGES, fixed=rows == 1
    )
    if rows == 1 and wants == GREEDY:
        run.launch()
    else:
        run.fetch(range(len(batch)))
