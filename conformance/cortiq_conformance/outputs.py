"""Requested outputs as arrays: observed ones, and expected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Named, Top, Want
from cortiq.backend.answers import drawing_want
from cortiq.backend.wants import value_of
from cortiq.numerics import digest, sampling
from cortiq.numerics.contract import F32
from cortiq_conformance.oracle import Evaluation

Observations = dict[str, np.ndarray]
"""Arrays by label: float32 values, int32 tokens and ids, uint32 digests."""


def label(want: Want, index: int) -> str:
    """Return the name of a want in reports; `index` tells several draws of a row apart."""
    if isinstance(want, Named):
        return want.name
    if isinstance(want, Digest):
        return f"digest of {want.name}"
    if isinstance(want, Top):
        return f"top {want.count}"
    if isinstance(want, DrawnLogit):
        return f"drawn logit by {want.calibration:g}"
    of = "" if want.name == "logits" else f" of {want.name}"
    return f"argmax{of}" if isinstance(want, Argmax) else f"draw {index}{of}"


def _arrays(want: Want, index: int, values: Sequence[Any]) -> Observations:
    name = label(want, index)
    if isinstance(want, Named):
        return {name: np.stack([np.asarray(v, F32) for v in values])}
    if isinstance(want, Digest):
        return {name: np.array([tuple(int(w) for w in v) for v in values], np.uint32)}
    if isinstance(want, DrawnLogit):
        return {name: np.array([tuple(map(F32, v)) for v in values], F32)}
    if not isinstance(want, Top):
        return {name: np.array([int(v) for v in values], np.int32)}
    ids, numbers, totals = zip(*values, strict=True)
    return {
        f"{name}: ids": np.array([np.asarray(i) for i in ids], np.int32),
        f"{name}: values": np.array([np.asarray(n) for n in numbers], F32),
        f"{name}: logsumexp": np.array([F32(t) for t in totals], F32),
    }


def observed(wants: Sequence[Want], rows: Sequence[Mapping[Want, Any]]) -> Observations:
    """Return the outputs of one sequence's rows; a missing one is a `KeyError`."""
    found: Observations = {}
    for index, want in enumerate(wants):
        found |= _arrays(want, index, [row[want] for row in rows])
    return found


def expected(wants: Sequence[Want], evaluation: Evaluation, history: Sequence[int]) -> Observations:
    """Return the outputs by definition; `history`: ids of the sequence, these rows included."""
    found: Observations = {}
    count, before = len(evaluation.faults), len(history) - len(evaluation.faults)
    for index, want in enumerate(wants):
        values = [
            _expected(want, evaluation, i, history[: before + i + 1], wants) for i in range(count)
        ]
        found |= _arrays(want, index, values)
    return found


def _expected(
    want: Want, evaluation: Evaluation, row: int, history: Sequence[int], wants: Sequence[Want]
) -> Any:
    value = evaluation.values[value_of(want)][row]
    if isinstance(want, Named):
        return value
    if isinstance(want, Digest):
        return digest.digest(value)
    if isinstance(want, Argmax):
        return sampling.argmax(value)
    if isinstance(want, Top):
        return (*sampling.top(value, want.count), sampling.log_sum_exp(value))
    if isinstance(want, DrawnLogit):
        drawing = drawing_want(wants)
        assert drawing is not None
        token = _expected(drawing, evaluation, row, history, wants)
        return sampling.drawn_logit(value, int(token), want.scale)
    assert isinstance(want, Draw)
    position, choice = len(history) - 1 + want.ahead, want.choice
    seen = history if want.history is None else want.history
    return sampling.draw(value, want.sampling, seen, position, choice, mask=want.mask)
