"""Embeddings: one vector for a text, pooled from the hidden states of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cortiq.backend import Executable, Named
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Session
from cortiq.errors import RequestError, SequenceFailedError
from cortiq.model.score import ROWS
from cortiq.numerics.contract import F32, SMALLEST_EXPONENT, Floats, snap
from cortiq.numerics.norms import l2_norm
from cortiq.numerics.sums import canonical_sum
from cortiq.options import EmbedOptions

EPSILON = 2.0**SMALLEST_EXPONENT
HIDDEN = Named("hidden")


def embedding_of(executable: Executable, ids: Sequence[int], options: EmbedOptions) -> Floats:
    """Return the embedding of one text: float32 [width].

    Of the rows that go into the output head (after the last norm): pooling `last` takes that of
    the last token; `mean` is snap(RN(S·RN(1/n))), S the canonical sum over the n tokens, in the
    order of their positions, of each column. With `normalise` then `l2_norm`, eps = 2⁻⁴⁰.

    Raises
    ------
    RequestError : the prompt cannot be served, or the model's graph has no hidden state.
    """
    made = [vector for vector in embedding_steps(executable, ids, options) if vector is not None]
    return made[-1]


def embedding_steps(
    executable: Executable, ids: Sequence[int], options: EmbedOptions
) -> Iterator[Floats | None]:
    """Yield None after each `ROWS` tokens, and at last the embedding; see `embedding_of`."""
    tokens = check_prompt(ids, executable.program)
    if HIDDEN.name not in executable.program.trunk.values:
        raise RequestError("the model's graph names no hidden state", where="embed")
    faults, mean = np.zeros(1, bool), options.pooling == "mean"
    rows: list[Floats] = []
    with Session(executable, len(tokens)) as session:
        for start in range(0, len(tokens), ROWS):
            chunk = tokens[start : start + ROWS]
            if mean or start + ROWS >= len(tokens):
                fed = session.feed(chunk, (HIDDEN,), every=mean)
                made = session.read_rows(fed)
                rows += [np.asarray(row[HIDDEN], F32) for row in (made if mean else made[-1:])]
            else:
                session.read_rows(session.feed(chunk, ()))
            yield None
    vector = _mean(np.stack(rows), faults) if mean else rows[-1]
    if options.normalise:
        vector = l2_norm(vector[None], EPSILON, faults)[0]
    if faults[0]:
        raise SequenceFailedError("the embedding left the contract's domain", where="embed")
    yield vector


def _mean(rows: Floats, faults: np.ndarray) -> Floats:
    mean = canonical_sum(rows, axis=-2) * (F32(1) / F32(len(rows)))
    return snap(mean[None], faults)[0]
