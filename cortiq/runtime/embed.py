"""Embeddings: one vector for a text, pooled from the hidden states of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.backend import Executable, Named
from cortiq.errors import RequestError, SequenceFailedError
from cortiq.numerics.contract import F32, SMALLEST_EXPONENT, Floats, snap
from cortiq.numerics.norms import l2_norm
from cortiq.numerics.sums import canonical_sum
from cortiq.options import EmbedOptions
from cortiq.runtime.request import check_prompt
from cortiq.runtime.score import ROWS
from cortiq.runtime.sequence import Session

EPSILON = 2.0**SMALLEST_EXPONENT
HIDDEN = Named("hidden")


def embedding_of(executable: Executable, ids: Sequence[int], options: EmbedOptions) -> Floats:
    """The embedding of one text: float32 [width].

    Of the rows that go into the output head (after the last norm): pooling `last` takes that of
    the last token; `mean` is snap(RN(S·RN(1/n))), S the canonical sum over the n tokens, in the
    order of their positions, of each column. With `normalise` then `l2_norm`, eps = 2⁻⁴⁰.

    Raises
    ------
    RequestError : the prompt cannot be served, or the model's graph has no hidden state.
    """
    tokens = check_prompt(ids, executable.program)
    if HIDDEN.name not in executable.program.trunk.values:
        raise RequestError("the model's graph names no hidden state", where="embed")
    faults = np.zeros(1, bool)
    pooled = _mean(_rows(executable, tokens), faults) if options.pooling == "mean" else None
    vector = _last(executable, tokens) if pooled is None else pooled
    if options.normalise:
        vector = l2_norm(vector[None], EPSILON, faults)[0]
    if faults[0]:
        raise SequenceFailedError("the embedding left the contract's domain", where="embed")
    return vector


def _rows(executable: Executable, tokens: Sequence[int]) -> Floats:
    """The hidden state after every token: float32 [tokens, width]."""
    made = []
    with Session(executable, len(tokens)) as session:
        for start in range(0, len(tokens), ROWS):
            chunk = tokens[start : start + ROWS]
            rows = session.read_rows(session.feed(chunk, (HIDDEN,), every=True))
            made += [np.asarray(row[HIDDEN], F32) for row in rows]
    return np.stack(made)


def _last(executable: Executable, tokens: Sequence[int]) -> Floats:
    with Session(executable, len(tokens)) as session:
        pending = session.prefill(tokens, (HIDDEN,), ROWS)
        assert pending is not None  # nobody cancels it
        return np.asarray(session.read(pending)[HIDDEN], F32)


def _mean(rows: Floats, faults: np.ndarray) -> Floats:
    mean = canonical_sum(rows, axis=-2) * (F32(1) / F32(len(rows)))
    return snap(mean[None], faults)[0]
