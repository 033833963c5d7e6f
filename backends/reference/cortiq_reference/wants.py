"""What a row can ask for, from the values of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cortiq.backend import Argmax, Digest, Draw, Named, Top
from cortiq.numerics import digest, sampling


def _draw(want: Draw, run: Any, at: int) -> int:
    position, logits = run.rows[at].position + want.ahead, run.row_of(want.name, at)
    history = run.history(at) if want.history is None else want.history
    choice, mask = want.choice, want.mask
    return sampling.draw(logits, want.sampling, history, position, choice, mask=mask)


def _top(want: Top, run: Any, at: int) -> tuple:
    logits = run.row_of("logits", at)
    ids, values = sampling.top(logits, want.count)
    return ids, values, sampling.log_sum_exp(logits)


Answers = Mapping[type, Callable[[Any, Any, int], Any]]

WANTS: Answers = {
    Named: lambda want, run, at: run.row_of(want.name, at),
    Argmax: lambda want, run, at: int(sampling.argmax(run.row_of(want.name, at))),
    Draw: _draw,
    Top: _top,
    Digest: lambda want, run, at: digest.digest(run.row_of(want.name, at)),
}
"""How each kind of want is answered: (want, run, row) → value."""
