"""Embeddings: one vector for a text, pooled from the hidden states of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cortiq.backend import Executable, Named, Want
from cortiq.engine.encoder_rows import EncoderRows, entry_outputs
from cortiq.engine.request import check_prompt, id_list
from cortiq.engine.session import RowResult, Session
from cortiq.errors import RequestError, SequenceFailedError, shown
from cortiq.formats.sentence_settings import SentenceSettings
from cortiq.ir import Program
from cortiq.ir.encoders import ENCODER, POOLED, SENTENCE, Encoder
from cortiq.model.pooling import MEAN, places_of, pooled
from cortiq.model.score import ROWS
from cortiq.numerics.contract import F32, SMALLEST_EXPONENT, Floats
from cortiq.numerics.norms import l2_norm
from cortiq.options import EmbedOptions
from cortiq.tokenizer.frames import FramedText

if TYPE_CHECKING:
    from cortiq.model.model import Model

EPSILON = 2.0**SMALLEST_EXPONENT
HIDDEN = Named("hidden")
FAILED = "the embedding left the contract's domain"


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


def framed_prompt(model: Model, prompt: str | Iterable[int], name: str = "auto") -> FramedText:
    """Return a text after the prompt of a name, with what the tokenizer puts around both; ids as
    they are.

    Raises
    ------
    RequestError : the text is empty, or there is no such prompt.
    """
    before = prompt_before(model._source.sentence, name)
    if isinstance(prompt, str):
        if not prompt:
            raise RequestError("the text is empty", where="embed")
        return model.tokenizer.framed(before + prompt)
    if before and name != "auto":
        raise RequestError("a prompt goes before texts, not before token ids", where="prompt_name")
    ids = tuple(id_list(prompt))
    return FramedText(ids, (0,) * len(ids))


def prompt_before(settings: SentenceSettings, name: str) -> str:
    """Return the prompt of a name in the model's files; of `auto` the usual one, if there is one.

    Raises
    ------
    RequestError : there is none of this name, or the files leave prompts out of the pooling.
    """
    name = settings.usual if name == "auto" else name
    if not name:
        return ""
    if name not in settings.prompts:
        hint = f"there are: {', '.join(settings.prompts) or 'none'}"
        raise RequestError(f"no prompt is called {shown(name)}", where="prompt_name", hint=hint)
    if settings.prompts[name] and not settings.prompts_pooled:
        what = "the model's files leave a prompt's tokens out of the pooling, which cortiq does not"
        raise RequestError(what, where="prompt_name", hint="prompt_name='' puts none before it")
    return settings.prompts[name]


def embedding_of(
    executable: Executable, text: FramedText | Sequence[int], options: EmbedOptions
) -> Floats:
    """Return the embedding of one text: float32 [width], or [`dimensions`].

    The rows that go into the output head (after the last norm) are pooled (`cortiq.model.pooling`);
    what the model's files do to the pooled row is the program's entry `SENTENCE`. Of that the first
    `dimensions` values are taken, and with `normalise` then `l2_norm`, eps = 2⁻⁴⁰.

    Raises
    ------
    RequestError : the prompt cannot be served, the model's graph has no hidden state, or its
        vectors have fewer than `dimensions` values.
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
    check_dimensions(program, options.dimensions)
    faults, pooling = np.zeros(1, bool), pooling_for(program, options.pooling)
    places = places_of(pooling, len(tokens))
    rows: list[Floats] = []
    if encoder_of(program) is not None:
        wants = [(HIDDEN,) if i in places else () for i in range(len(tokens))]
        made = encoded_rows(executable, FramedText(tokens, given.segments), wants)
        rows = [np.asarray(row[HIDDEN], F32) for row in made if row]
        yield None
    else:
        for found in _causal_rows(executable, tokens, places):
            rows += found
            yield None
    vector = pooled(np.stack(rows), pooling, faults)
    if SENTENCE in program.graphs and not faults[0]:
        vector = _after_steps(executable, vector)
    vector = vector[: options.dimensions]
    if options.normalise:
        vector = l2_norm(vector[None], EPSILON, faults)[0]
    if faults[0]:
        raise SequenceFailedError(FAILED, where="embed")
    yield vector


def vector_width(program: Program) -> int:
    """Return how many values an embedding has."""
    graph, name = program.graphs.get(SENTENCE, program.trunk), HIDDEN.name
    return graph.values[SENTENCE if SENTENCE in program.graphs else name].shape[-1]


def check_dimensions(program: Program, asked: int | None) -> None:
    """Raise RequestError where a vector has fewer values than are asked for."""
    if asked is not None and asked > (width := vector_width(program)):
        what = f"{asked} dimensions, but the model's vectors have {width}"
        raise RequestError(what, where="dimensions", hint=f"ask for 1 to {width}")


def _after_steps(executable: Executable, row: Floats) -> Floats:
    """Return what the entry `SENTENCE` makes of a pooled row."""
    with Session(executable, 1) as session:
        given = EncoderRows(session.state, 1, {POOLED: np.ascontiguousarray(row[None])})
        ((made,),) = entry_outputs(executable, [given], SENTENCE, FAILED)
    return made[0]


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
