"""Answers to each kind of want, computed on the host by the contract's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cortiq.backend.batch import Argmax, Digest, Draw, DrawnLogit, Named, Top, Want
from cortiq.numerics import digest, sampling


def _draw(want: Draw, walk: Any, at: int) -> int:
    position, logits = walk.rows[at].position + want.ahead, walk.row_of(want.name, at)
    history = walk.history(at) if want.history is None else want.history
    return sampling.draw(logits, want.sampling, history, position, want.choice, mask=want.mask)


def _top(want: Top, walk: Any, at: int) -> tuple:
    logits = walk.row_of("logits", at)
    ids, values = sampling.top(logits, want.count)
    return ids, values, sampling.log_sum_exp(logits)


def _drawn_logit(want: DrawnLogit, walk: Any, at: int) -> tuple:
    drawing = drawing_want(walk.rows[at].wants)
    token = walk.answers[type(drawing)](drawing, walk, at)
    return sampling.drawn_logit(walk.row_of("logits", at), token, want.scale)


def drawing_want(wants: Sequence[Want]) -> Draw | Argmax | None:
    """Return the first want that draws a token."""
    for want in wants:
        if isinstance(want, Draw | Argmax):
            return want
    return None


Answers = Mapping[type, Callable[[Any, Any, int], Any]]

ON_HOST: Answers = {
    Named: lambda want, walk, at: walk.row_of(want.name, at),
    Argmax: lambda want, walk, at: int(sampling.argmax(walk.row_of(want.name, at))),
    Draw: _draw,
    Top: _top,
    DrawnLogit: _drawn_logit,
    Digest: lambda want, walk, at: digest.digest(walk.row_of(want.name, at)),
}
"""How each kind of want is answered: (want, `cortiq.backend.walk.Walk`, row) → value."""
