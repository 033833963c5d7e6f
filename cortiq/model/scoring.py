"""Scores, likelihoods, logits and embeddings of given texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cortiq.arguments import function_of, list_of
from cortiq.engine.request import id_list
from cortiq.engine.session import Progress
from cortiq.model.embed import embedding_of, framed_prompt, pooling_for
from cortiq.model.likelihood import Likelihood, likelihoods_of
from cortiq.model.rerank import reranked
from cortiq.model.score import Score, rows_of, score_ids
from cortiq.options import EmbedOptions, ScoreOptions, resolve
from cortiq.receipts.difference import Verification
from cortiq.receipts.record import Receipt
from cortiq.receipts.replay import verify_on

if TYPE_CHECKING:
    from cortiq.model.model import Model
    from cortiq.model.prompts import TextPrompt


class ScoringMixin:
    """The methods of `Model` that draw nothing."""

    def score(self, text: TextPrompt, *, progress: Progress | None = None, **options: Any) -> Score:
        """Return the perplexity of a text or of token ids, in windows; see `cortiq.model.score`.

        Parameters
        ----------
        progress : called with the tokens done and in all.
        options : fields of `cortiq.ScoreOptions`; `help(cortiq.ScoreOptions)` lists them.
        """
        model = cast("Model", self)
        chosen, progress = resolve(ScoreOptions, options), function_of(progress, "progress")
        ids = (
            model.tokenizer.encode(text, add_bos=False) if isinstance(text, str) else id_list(text)
        )
        with model._working():
            return score_ids(model.executable, model.tokenizer, ids, chosen, progress)

    def logits(self, prompt: TextPrompt) -> np.ndarray:
        """Return the logits after every token of a text or of ids: float32 [tokens, vocabulary].

        Row i holds what the model thinks of the token after `ids[i]`; the bits are the contract's.

        Raises
        ------
        RequestError : the prompt is empty, out of the vocabulary, or longer than the context.
        """
        model = cast("Model", self)
        with model._working():
            return rows_of(model.executable, model.ids(prompt))

    def token_embeddings(self, prompt: TextPrompt) -> np.ndarray:
        """Return the rows that enter the first layer for a text or ids: float32 [tokens, width].

        They are what `generate` takes as `embeddings`, the model's own factor on them included.

        Raises
        ------
        RequestError : the prompt is empty, out of the vocabulary, or longer than the context.
        """
        model = cast("Model", self)
        with model._working():
            return rows_of(model.executable, model.ids(prompt), "embed")

    def likelihoods(
        self, context: TextPrompt, continuations: Sequence[Iterable[int]]
    ) -> tuple[Likelihood, ...]:
        """Return the likelihood of each continuation after one context, which is computed once.

        Parameters
        ----------
        context : text or token ids.
        continuations : token ids. (Where a text ends and another begins is a question of
            tokenisation, and the caller's.)

        Raises
        ------
        RequestError : something is empty, out of the vocabulary, or longer than the context.
        """
        model = cast("Model", self)
        listed = list_of(continuations, "likelihoods", "give a list of lists of token ids")
        ids, wanted = model.ids(context), [id_list(c) for c in listed]
        with model._working():
            return tuple(likelihoods_of(model.executable, ids, wanted))

    def verify(
        self,
        receipt: Receipt,
        *,
        progress: Progress | None = None,
        images: Iterable[Any] = (),
        audio: Any = None,
    ) -> Verification:
        """Compute again what a receipt claims; `cortiq.verify` opens the model as well.

        Parameters
        ----------
        images : those that it is about, in their order. audio : the sound that it is about.
        """
        model = cast("Model", self)
        with model._working():
            return verify_on(model, receipt, function_of(progress, "progress"), images, audio)

    def embed(self, prompt: TextPrompt | Sequence[TextPrompt], **options: Any) -> np.ndarray:
        """Return a vector for a text or for token ids, from the hidden states: float32 [width].

        A list of texts, or of lists of ids, gives an array [texts, width]. The bits are the
        contract's, and so the same on every backend.

        Parameters
        ----------
        options : fields of `cortiq.EmbedOptions`: `pooling`, `prompt_name`, `dimensions` and
            `normalise`. A text has all that the tokenizer puts around one, such as `[CLS]`.

        Raises
        ------
        RequestError : a prompt cannot be served.
        """
        model, chosen = cast("Model", self), resolve(EmbedOptions, options)
        several = _several(prompt)
        prompts = (
            list(cast("Sequence[TextPrompt]", prompt)) if several else [cast("TextPrompt", prompt)]
        )
        chosen = replace(chosen, pooling=model.pooling(chosen.pooling))
        texts = [framed_prompt(model, one, chosen.prompt_name) for one in prompts]
        with model._working():
            made = [embedding_of(model.executable, one, chosen) for one in texts]
        return np.stack(made) if several else made[0]

    def pooling(self, asked: str = "auto") -> str:
        """Return how hidden rows become a vector: as asked, or as the model's files say."""
        model = cast("Model", self)
        return pooling_for(
            model.program, asked if asked != "auto" else model._source.sentence.pooling
        )

    def rerank(
        self, query: str, documents: Sequence[str], *, method: str = "auto", instruction: str = ""
    ) -> list[float]:
        """Return the relevance of each document to a query (`cortiq.model.rerank`).

        Parameters
        ----------
        method : `classifier` (a cross-encoder) and `yes-no` (Qwen3-Reranker), both from 0 to 1;
            `cosine` of embeddings, from -1 to 1; or `auto`.
        instruction : of `yes-no`, what makes a document relevant.

        Raises
        ------
        RequestError : the model cannot do that; the query or a document is empty.
        """
        model = cast("Model", self)
        listed = list_of(documents, "rerank", "give a list of texts")
        with model._working():
            pairs = reranked(model, query, listed, method, instruction)
            return [score for score in pairs if score is not None]


def _several(prompt: object) -> bool:
    """Return whether this is a list of prompts; token ids, which are none, are integers."""
    if isinstance(prompt, (list, tuple)) and prompt:
        return isinstance(prompt[0], (str, list, tuple, np.ndarray))
    return isinstance(prompt, np.ndarray) and prompt.ndim > 1
