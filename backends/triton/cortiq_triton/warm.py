"""Launches that serving needs, before anybody waits for them.

Batches of every kind that differ in their kernels are walked through with nothing launched: rows of
decoding steps by the sizes of tiles that suit them, and pieces of prompts and drafts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cortiq.backend import Argmax, Batch, Digest, Draw, DrawnLogit, Row, Top, Want
from cortiq.backend.executable import Accepted
from cortiq.numerics.sampling import Sampling
from cortiq_triton.asking import ask
from cortiq_triton.decode import FEWEST_PAGES
from cortiq_triton.draw_numbers import Stored
from cortiq_triton.language import ceil_div
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.run import Run
from cortiq_triton.shapes import Scratch
from cortiq_triton.step_answers import LOGITS, StepAnswers

DIGEST = Digest(LOGITS)
WANTS: tuple[tuple[Want, ...], ...] = (
    (Argmax(), DIGEST),
    (Argmax(), DIGEST, DrawnLogit()),
    (Draw(Sampling(temperature=0.8)), DIGEST),
    (Draw(Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.1)), DIGEST),
    (Draw(Sampling(temperature=0.0, repetition_penalty=1.1)), DIGEST),
    (Draw(Sampling(top_k=50, logit_bias={0: 1.0}), mask=b"\x01"), DIGEST),
    (Draw(Sampling(top_k=50, top_p=0.9, min_p=0.1), mask=b"\x01"), DIGEST),
    (Draw(Sampling(presence_penalty=0.1, top_p=0.9)), DIGEST, DrawnLogit(), Top(2)),
)
"""What rows that draw may want, so that every kernel of draws is met."""
DECODING = (1, 16, 32, 64, 128, 256)
"""Sequences of a decoding step: others have the kernels of the next larger number."""
PIECES = (2, 3, 5, 9, 16, 32, 64, 128, 512, 1024, 2048)
"""Rows of a batch in few sequences: drafts that are verified, and pieces of prompts."""


@contextmanager
def _cleared() -> Iterator[None]:
    """Give out cleared memory for empty arrays: what no kernel fills is still taken for indices."""
    before = torch.empty, torch.empty_like, torch.Tensor.new_empty
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    torch.Tensor.new_empty = torch.Tensor.new_zeros
    try:
        yield
    finally:
        torch.empty, torch.empty_like, torch.Tensor.new_empty = before


def walk(executable: Any) -> None:
    """Walk through these batches; the entries that rows must supply values for are left out."""
    with _cleared():
        _walk(executable)


def _walk(executable: Any) -> None:
    for name, plan in executable.plans.items():
        if not set(plan.graph.inputs) <= {"token", "position"}:
            continue
        answered = LOGITS in plan.graph.values
        for sequences in DECODING:
            _step(executable, name, sequences, answered)
        for rows in PIECES:
            if rows <= executable.batch_rows:
                _piece(executable, name, rows, answered)


def _step(executable: Any, name: str, sequences: int, answered: bool) -> None:
    """Walk through a step of decoding, with everything that its rows may want."""
    run = _placed(executable, name, sequences, 1, WANTS[0] if answered else ())
    run.launch()
    width = run.plan.graph.values[LOGITS].shape[-1] if answered else 0
    for wants in WANTS if answered else ():
        rows = [Row(row.state, row.position, 0, wants) for row in run.rows]
        held = dict.fromkeys(range(sequences), Stored(0, 1))
        asked, arrays = ask(rows, held, width)
        StepAnswers(run, asked, arrays, FEWEST_PAGES).launch()


def _piece(executable: Any, name: str, rows: int, answered: bool) -> None:
    """Walk through rows of one sequence, or of as many as have room for them."""
    sequences = ceil_div(rows, executable.program.context)
    each = ceil_div(rows, sequences)
    for wants in WANTS if answered else ((),):
        _placed(executable, name, sequences, each, wants).fetch(range(sequences * each))


def _placed(executable: Any, name: str, sequences: int, rows: int, wants: tuple[Want, ...]) -> Run:
    """Make a run whose rows are on the device; the last of each sequence has wants."""
    accepted, batch = [], []
    for number in range(sequences):
        state: Any = Scratch()
        first = number * rows
        accepted.append(Accepted(state, range(first, first + rows), [0] * rows))
        batch += [Row(state, i, 0, wants if i == rows - 1 else ()) for i in range(rows)]
    plan, drawn = executable.plans[name], executable.decoder.drawn
    run = Run(plan, Batch(batch, name), accepted, executable.shared, drawn)
    buffer = RowBuffer(executable.device, turns=1)
    run.place(buffer, [-1] * len(batch), FEWEST_PAGES, fixed=rows == 1)
    return run
