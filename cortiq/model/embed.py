"""Embeddings: one vector for a text, pooled from the hidden states of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cortiq.backend import Executable, Named, Want
from cortiq.engine.request import check_prompt, id_list
from cortiq.engine.session import RowResult, Session
from cortiq.errors import RequestError, SequenceFailedError
from cortiq.ir import Program
from cortiq.ir.encoders import ENCODER, Encoder
from cortiq.model.score import ROWS
from cortiq.numerics.contract import F32, SMALLEST_EXPONENT, Floats, snap
from cortiq.numerics.norms import l2_norm
from cortiq.numerics.sums import canonical_sum
from cortiq.options import EmbedOptions
from cortiq.tokenizer.frames import FramedText

if TYPE_CHECKING:
    from cortiq.model.model import Model

EPSILON = 2.0**SMALLEST_EXPONENT
HIDDEN = Named("hidden")
MEAN, FIRST, LAST = "mean", "cls", "last"


def encoder_of(program: Program) -> Encoder | None:
    """Return what makes a program an encoder; None if it is none."""
    found = program.facts.get(ENCODER)
    return found if isinstance(found, Encoder) else None


def pooling_for(program: Program, asked: str) -> str:
    """Return a pooling: the one that is asked for, or the one of the model's kind."""
    if asked not in ("", "auto"):
        return asked
    encoder = encoder_of(program)
    return encoder.pooling if encoder is not None else MEAN


def framed_prompt(model: Model, prompt: str | Iterable[int]) -> FramedText:
    """Return a text with what the tokenizer puts around it; ids as they are."""
    if isinstance(prompt, str):
        if not prompt:
            raise RequestError("the text is empty", where="embed")
        return model.tokenizer.framed(prompt)
    ids = tuple(id_list(prompt))
    return FramedText(ids, (0,) * len(ids))


def embedding_of(
    executable: Executable, text: FramedText | Sequence[int], options: EmbedOptions
) -> Floats:
    """Return the embedding of one text: float32 [width].

    Of the rows that go into the output head (after the last norm): pooling `last` takes that of
    the last token, `cls` that of the first; `mean` is snap(RN(S·RN(1/n))), S the canonical sum over
    the n tokens, in the order of their positions, of each column. With `normalise` then `l2_norm`,
    eps = 2⁻⁴⁰.

    Raises
    ------
    RequestError : the prompt cannot be served, or the model's graph has no hidden state.
    """
    made = [vector for vector in embedding_steps(executable, text, options) if vector is not None]
    return made[-1]


def embedding_steps(
    executable: Executable, text: FramedText | Sequence[int], options: EmbedOptions
) -> Iterator[Floats | None]:
    """Yield None after each `ROWS` tokens, and at last the embedding; see `embedding_of`."""
    program = executable.program
    given = text if isinstance(text, FramedText) else FramedText(tuple(text), (0,) * len(text))
    tokens = check_prompt(given.ids, program, encoder=True)
    if HIDDEN.name not in program.trunk.values:
        raise RequestError("the model's graph names no hidden state", where="embed")
    faults, pooling = np.zeros(1, bool), pooling_for(program, options.pooling)
    places = {MEAN: range(len(tokens)), FIRST: range(1), LAST: range(len(tokens) - 1, len(tokens))}
    rows: list[Floats] = []
    if encoder_of(program) is not None:
        wants = [(HIDDEN,) if i in places[pooling] else () for i in range(len(tokens))]
        made = encoded_rows(executable, FramedText(tokens, given.segments), wants)
        rows = [np.asarray(row[HIDDEN], F32) for row in made if row]
        yield None
    else:
        for found in _causal_rows(executable, tokens, places[pooling]):
            rows += found
            yield None
    vector = mean_of(np.stack(rows), faults) if pooling == MEAN else rows[-1]
    if options.normalise:
        vector = l2_norm(vector[None], EPSILON, faults)[0]
    if faults[0]:
        raise SequenceFailedError("the embedding left the contract's domain", where="embed")
    yield vector


def _causal_rows(
    executable: Executable, tokens: Sequence[int], places: range
) -> Iterator[list[Floats]]:
    """Yield the hidden rows of some places, as far as they lie among the next `ROWS` tokens."""
    with Session(executable, len(tokens)) as session:
        for start in range(0, len(tokens), ROWS):
            chunk = tokens[start : start + ROWS]
            wants: list[tuple[Want, ...]] = [
                (HIDDEN,) if start + i in places else () for i in range(len(chunk))
            ]
            made = session.read_rows(session.feed_each(chunk, wants))
            yield [np.asarray(row[HIDDEN], F32) for row in made if row]


def encoded_rows(
    executable: Executable,
    text: FramedText,
    wants: Sequence[tuple[Want, ...]],
    given: Sequence[dict[str, np.ndarray]] | None = None,
) -> Sequence[RowResult]:
    """Compute all rows of a text of an encoder in one batch.

    Parameters
    ----------
    given : what each row supplies besides.

    Raises
    ------
    RequestError : the text is longer than the model's positions.
    """
    encoder, context = encoder_of(executable.program), executable.program.context
    assert encoder is not None
    if len(text.ids) + encoder.places > context:
        what = (
            f"the text has {len(text.ids)} tokens, the model {context - encoder.places} positions"
        )
        raise RequestError(what, hint="give a shorter text")
    inputs = encoder.inputs(text.segments)
    for row, more in zip(inputs, given or (), strict=False):
        row.update(more)
    with Session(executable, len(text.ids)) as session:
        return session.read_rows(session.feed_each(text.ids, wants, inputs))


def mean_of(rows: Floats, faults: np.ndarray) -> Floats:
    """Return the mean of rows as `embedding_of` defines it."""
    mean = canonical_sum(rows, axis=-2) * (F32(1) / F32(len(rows)))
    return snap(mean[None], faults)[0]
