"""Launches that serving needs, before anybody waits for them.

Batches of every kind that differ in their kernels are walked through with nothing launched: rows of
decoding steps by the sizes of tiles that suit them, and pieces of prompts and drafts. Layers that
are alike are walked through once. Draws have their own kernels for every set of features, so rows
with each set are among them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from cortiq.backend import Argmax, Batch, Digest, Draw, DrawnLogit, Row, Top, Want
from cortiq.backend.admission import BY_ROW
from cortiq.backend.executable import Accepted
from cortiq.backend.plan import Step
from cortiq.numerics.sampling import Sampling
from cortiq_triton import layer_launch
from cortiq_triton.answers import Answers
from cortiq_triton.asking import ask
from cortiq_triton.draw_numbers import Stored
from cortiq_triton.given_rows import known_inputs
from cortiq_triton.language import ceil_div
from cortiq_triton.mixed import MOST_EACH
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.run import Run
from cortiq_triton.shapes import FEWEST_PAGES, Scratch
from cortiq_triton.step_answers import LOGITS, StepAnswers

DIGEST = Digest(LOGITS)


def every_draw() -> Iterator[Draw]:
    """Yield a draw with each set of features that `draw_numbers.Features` tells apart."""
    for top_k, top_p, min_p, bias, penalty, mask in product((False, True), repeat=6):
        chosen = Sampling(
            temperature=0.8, top_k=50 * top_k, top_p=0.9 if top_p else 1.0, min_p=0.1 * min_p,
            logit_bias={0: 1.0} if bias else {}, presence_penalty=0.1 * penalty,
        )  # fmt: skip
        yield Draw(chosen, mask=b"\x01" if mask else None)


PLAIN: tuple[Want, ...] = (Argmax(), DIGEST)
WANTS: tuple[tuple[Want, ...], ...] = (
    PLAIN,
    (Argmax(), DIGEST, DrawnLogit()),
    (Argmax(), DIGEST, DrawnLogit(0.5)),
    (Argmax(), DIGEST, DrawnLogit(), Top(1)),
    (Argmax(), DIGEST, DrawnLogit(0.5), Top(2)),
    (Top(16),),
    *((draw, DIGEST) for draw in every_draw()),
)
"""What rows may want, so that every kernel of answers is met."""
DECODING = (1, 16, 32, 64, 128, 256)
"""Sequences of a decoding step: others have the kernels of the next larger number."""
FAR_PAGES = 2 * layer_launch.MOST_TILES
"""Pages of a step whose layers are launches of their own, alone in its batch."""
PIECES = (2, 3, 5, 9, 16, 32, 64, 128, 512, 1024, 2048)
"""Rows of a batch in few sequences: drafts that are verified, and pieces of prompts."""
ANSWERED = 2
"""Rows that are walked through with everything they may want: how many there are is data."""


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


def facts_of(value: Any) -> Hashable:
    """Return what decides which kernels a value meets: numbers and shapes, not what arrays hold."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.data_ptr() % 16
    if isinstance(value, tuple | list):
        return type(value), *map(facts_of, value)
    if isinstance(value, dict):
        return tuple((name, facts_of(part)) for name, part in value.items())
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.compare]
        return type(value), *(facts_of(getattr(value, name)) for name in names)
    return value if isinstance(value, Hashable) else repr(value)


class WarmingRun(Run):
    """A run whose steps are launched once of those that are alike but for their layer.

    Attributes
    ----------
    made : what such steps returned.
    """

    made: dict[Hashable, Sequence[Any]]

    def outputs(self, step: Step, call: Any, inputs: list[Any], rows: int) -> Sequence[Any]:
        """Launch a step, unless one like it was launched."""
        cells = getattr(step.kernel, "__closure__", None) or ()
        key = (
            re.sub(r"\d+", "#", step.node.name), facts_of(step.node.op), rows,
            getattr(step.kernel, "__code__", step.kernel),
            facts_of([cell.cell_contents for cell in cells]),
            facts_of(dict(step.weights)), facts_of(inputs),
        )  # fmt: skip
        if key not in self.made:
            self.made[key] = super().outputs(step, call, inputs, rows)
        return self.made[key]


def walk(executable: Any) -> None:
    """Walk through these batches; entries that make rows of other things are left out."""
    with _cleared():
        for name, plan in executable.plans.items():
            answered = LOGITS in plan.graph.values
            if {*plan.graph.inputs} <= {*BY_ROW} or (answered and known_inputs(plan.graph)):
                _walk(executable, name, answered)
        block = executable.scratch_memory()[1]
        if block is not None:
            executable.memory.warm(block)


def _walk(executable: Any, name: str, answered: bool) -> None:
    wants: tuple[Want, ...] = PLAIN if answered else ()
    if layer_launch.available():
        _placed(executable, name, 1, 1, wants, pages=FAR_PAGES).launch()
    for sequences in DECODING:
        run = _placed(executable, name, sequences, 1, wants)
        run.launch()
        if answered:
            _answer(run, WANTS[:4])
        if answered and sequences == 1:
            _answer(run, WANTS)
    for rows in PIECES:
        if rows <= executable.batch_rows:
            sequences = ceil_div(rows, executable.program.context)
            each = ceil_div(rows, sequences)
            for everywhere in (False, answered and rows <= MOST_EACH):
                run = _placed(executable, name, sequences, each, wants, everywhere)
                run.fetch(range(sequences * each))
    if answered:
        run = _placed(executable, name, ANSWERED, 1, wants)
        run.launch()
        _answer(run, WANTS)
        for mine in WANTS:  # as they are answered launch by launch
            run.rows = [Row(row.state, row.position, 0, mine) for row in run.rows]
            Answers(run)


def _answer(run: Run, every: Sequence[tuple[Want, ...]]) -> None:
    """Answer each of these wants of all rows of a run, as a step does."""
    width = run.plan.graph.values[LOGITS].shape[-1]
    for wants in every:
        rows = [Row(row.state, row.position, 0, wants) for row in run.rows]
        asked, arrays = ask(rows, dict.fromkeys(range(len(rows)), Stored(0, 1)), width)
        StepAnswers(run, asked, arrays, FEWEST_PAGES).launch()


def _zeros(plan: Plan) -> dict[str, np.ndarray]:
    """Return what a row supplies that supplies zeros."""
    kinds = {name: plan.graph.values[name] for name in plan.graph.inputs if name not in BY_ROW}
    return {
        name: np.zeros(kind.shape, np.int32 if kind.dtype == "i32" else np.float32)
        for name, kind in kinds.items()
    }


def _placed(
    executable: Any, name: str, sequences: int, rows: int, wants: tuple[Want, ...],
    everywhere: bool = False, pages: int = FEWEST_PAGES,
) -> Run:  # fmt: skip
    """Make a run whose rows are on the device; the last of each sequence has wants, or all."""
    accepted, batch, plan = [], [], executable.plans[name]
    given = _zeros(plan)
    for number in range(sequences):
        state: Any = Scratch()
        first = number * rows
        accepted.append(Accepted(state, range(first, first + rows), [0] * rows))
        wanting = range(rows) if everywhere else (rows - 1,)
        batch += [Row(state, i, 0, wants if i in wanting else (), given) for i in range(rows)]
    drawn = executable.decoder.drawn
    run = WarmingRun(plan, Batch(batch, name), accepted, executable.shared, drawn)
    run.made = {}
    buffer = RowBuffer(executable.device, turns=1)
    run.place(buffer, [-1] * len(batch), pages, fixed=rows == 1)
    return run
