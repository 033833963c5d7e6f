"""Reranking: how relevant documents are to a query.

`classifier` is a cross-encoder (BertForSequenceClassification and the like) with one output, whose
sigmoid is the relevance. `yes-no` is Qwen3-Reranker as it was published: a prompt that asks whether
the document answers the query, and of the logits after it those of "yes" and "no". `cosine` is an
embedding model: the cosine of the angle between the embeddings of query and document, from -1 to 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cortiq.backend import Named, Want
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Session
from cortiq.errors import RequestError, SequenceFailedError, shown
from cortiq.model.embed import (
    HIDDEN,
    embedding_steps,
    encoded_rows,
    encoder_of,
    framed_prompt,
)
from cortiq.model.pooling import MEAN, pooled
from cortiq.model.score import ROWS
from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.scalar import sigmoid
from cortiq.numerics.sums import canonical_sum
from cortiq.options import EmbedOptions
from cortiq.tokenizer.frames import FramedText

if TYPE_CHECKING:
    from cortiq.model.model import Model

CLASSIFIER, YES_NO, COSINE, AUTO = "classifier", "yes-no", "cosine", "auto"
METHODS = (AUTO, CLASSIFIER, YES_NO, COSINE)
LOGITS = Named("logits")
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The published prompt, and its usual instruction."""


def reranked(
    model: Model, query: str, documents: Sequence[str], method: str = AUTO, instruction: str = ""
) -> Iterator[float | None]:
    """Yield the relevance of each document, and None while one is under way.

    Raises
    ------
    RequestError : the model cannot do that; a text is empty or too long.
    """
    chosen = method_for(model, method)
    for text in (query, *documents):
        if not isinstance(text, str) or not text:
            raise RequestError(f"a text is wanted, not {shown(text)}", where="rerank")
    if chosen == COSINE:
        yield from _cosines(model, query, documents)
        return
    for document in documents:
        if chosen == CLASSIFIER:
            yield classified(model, model.tokenizer.framed(query, document))
            continue
        yield from _answered(model, yes_no_ids(model, query, document, instruction))


def method_for(model: Model, method: str) -> str:
    """Return how a model reranks; `RequestError` if it cannot do what is asked."""
    encoder = encoder_of(model.program)
    if method not in METHODS:
        raise RequestError(
            f"there is no method {shown(method)}", hint=f"it is {', '.join(METHODS)}"
        )
    if method == COSINE or (method == AUTO and encoder is not None and not encoder.scores):
        return COSINE
    if encoder is not None and encoder.scores and method != YES_NO:
        labels = model.program.trunk.values[encoder.scores].shape[-1]
        if labels != 1:
            raise RequestError(f"a reranker has one output, this classifier {labels}")
        return CLASSIFIER
    if encoder is None and method == YES_NO:
        return YES_NO
    hint = (
        "a cross-encoder has a classifier; Qwen3-Reranker answers with method='yes-no'; "
        "method='cosine' compares embeddings of any model"
    )
    raise RequestError("the model is no reranker of this method", where="rerank", hint=hint)


def _cosines(model: Model, query: str, documents: Sequence[str]) -> Iterator[float | None]:
    """Yield the cosine between the embedding of the query and that of each document.

    It is the canonical sum of the products of their components, both embeddings being normalised.
    """
    options, first = EmbedOptions(pooling=model.pooling()), None
    for text in (query, *documents):
        for vector in embedding_steps(model.executable, framed_prompt(model, text), options):
            if vector is None:
                yield None
            elif first is None:
                first = vector
            else:
                yield float(canonical_sum(first * vector))


def classified(model: Model, text: FramedText) -> float:
    """Return the relevance that a cross-encoder gives a pair of texts."""
    encoder, executable = encoder_of(model.program), model.executable
    assert encoder is not None
    faults, want = np.zeros(1, bool), Named(encoder.scores)
    check_prompt(text.ids, model.program, encoder=True)
    asked: list[tuple[Want, ...]] = [(want,), *[()] * (len(text.ids) - 1)]
    if encoder.scored:  # the mean of all rows, which the classifier then reads in place of a row
        rows = encoded_rows(executable, text, [(HIDDEN,)] * len(text.ids))
        hidden = np.stack([np.asarray(row[HIDDEN], F32) for row in rows])
        mean = pooled(hidden, MEAN, faults)
        text, asked = FramedText(text.ids[:1], (0,)), [(want,)]
        made = encoded_rows(executable, text, asked, [{encoder.scored: mean}])
    else:
        made = encoded_rows(executable, text, asked)
    return _probability(np.asarray(made[0][want], F32), faults)


def yes_no_ids(model: Model, query: str, document: str, instruction: str) -> list[int]:
    """Return the ids of the published prompt; only its own texts can be control tokens."""
    encode = model.tokenizer.encode
    told = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    before, after = (encode(text, add_bos=False, parse_special=True) for text in (BEFORE, AFTER))
    return [*before, *encode(told, add_bos=False), *after]


def _answered(model: Model, ids: Sequence[int]) -> Iterator[float | None]:
    """Yield None after each `ROWS` tokens, and at last how likely yes is among yes and no."""
    yes, no = (model.tokenizer.encode(word, add_bos=False) for word in ("yes", "no"))
    if len(yes) != 1 or len(no) != 1:
        raise RequestError("the tokenizer has no tokens for yes and no", where="rerank")
    tokens = check_prompt(ids, model.program)
    with Session(model.executable, len(tokens)) as session:
        for start in range(0, len(tokens), ROWS):
            chunk = tokens[start : start + ROWS]
            ends = start + ROWS >= len(tokens)
            row = session.read(session.feed(chunk, (LOGITS,) if ends else ()))
            if not ends:
                yield None
    logits, faults = np.asarray(row[LOGITS], F32), np.zeros(1, bool)
    yield _probability(snap(logits[yes] - logits[no], faults), faults)


def _probability(value: Floats, faults: np.ndarray) -> float:
    if faults[0]:
        raise SequenceFailedError("a value left the contract's domain", where="rerank")
    return float(sigmoid(value)[0])
