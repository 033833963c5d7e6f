"""Requested outputs: lazy arrays that a batch computes, and the answers made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Named, Top, Want
from cortiq.numerics.quantise import Quantised
from cortiq_mlx import sampling
from cortiq_mlx.library import mx
from cortiq_mlx.quantised_rows import Faults, MlxRows, snap


@dataclass(frozen=True)
class LazyAnswer:
    """An answer under way.

    Attributes
    ----------
    arrays : what is computed. finish : makes the answer of them, on the host.
    peak : what `Faults` saw while it was made, or None.
    """

    arrays: Sequence[mx.array]
    finish: Callable[..., Any]
    peak: mx.array | None = None

    def result(self) -> Any:
        """Return the answer, once its arrays are computed."""
        return self.finish(*map(np.array, self.arrays))


def _named(value: mx.array | MlxRows) -> LazyAnswer:
    if isinstance(value, MlxRows):
        return LazyAnswer(value, lambda q, e: Quantised(q.astype(np.int32), e))
    return LazyAnswer([value], lambda x: x)


def _top(value: mx.array, number: int) -> LazyAnswer:
    ids = sampling.ordered(value, number)
    arrays = [ids.astype(mx.int32), mx.take(value, ids), sampling.log_sum_exp(value)]
    return LazyAnswer(arrays, lambda ids, values, total: (ids, values, total))


def drawn_logit(want: DrawnLogit, value: mx.array, token: mx.array) -> LazyAnswer:
    """The logit of the token that a row draws, and the logsumexp of its logits."""
    faults = Faults(1)
    if want.scale != 1:
        value = snap(value[None] * float(want.scale), faults)[0]
    arrays = [mx.take(value, token.reshape(-1)), sampling.log_sum_exp(value)]
    peak = faults.seen() if faults.peaks else None
    return LazyAnswer(arrays, lambda logit, total: (logit.item(), total.item()), peak)


def answer(
    want: Want, value: mx.array | MlxRows, position: int, history: Callable[[], Sequence[int]]
) -> LazyAnswer:
    """Start the answer to a want about its value's row.

    history : every id the sequence was fed, up to and including the row.
    """
    if isinstance(want, Named):
        return _named(value)
    assert isinstance(value, mx.array)
    if isinstance(want, Digest):
        return LazyAnswer([sampling.digest(value)], lambda words: tuple(int(w) for w in words))
    if isinstance(want, Argmax):
        return LazyAnswer([sampling.argmax(value)], int)
    if isinstance(want, Top):
        return _top(value, want.count)
    assert isinstance(want, Draw)
    faults = Faults(1)
    seen: Sequence[int] = ()
    if sampling.penalises(want.sampling):
        seen = history() if want.history is None else want.history
    token = sampling.draw(value, want, seen, position + want.ahead, faults)
    return LazyAnswer([token], int, faults.seen() if faults.peaks else None)
