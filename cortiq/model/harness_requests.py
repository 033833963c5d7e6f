"""The requests of evaluation suites: likelihoods of texts, and texts until a stop string.

Requests and answers are plain values, as the EleutherAI lm-evaluation-harness has them;
`cortiq.lm_eval` is the harness's own view of this. Every number is made of the contract's
log-probabilities by exact sums, so a score is the same, item for item, on every backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from cortiq.errors import RequestError, TokenizerError
from cortiq.model.likelihood import Likelihood
from cortiq.model.model import Model
from cortiq.options import GenerateOptions, resolve

Pair = tuple[str, str]
"""A context and a continuation."""
Advance = Callable[[int], None]
"""Called with how many requests more are done."""

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that suites have for `max_tokens`."""
PASSED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")


class EvaluationModel:
    """A model as an evaluation suite sees it.

    Attributes
    ----------
    model : the model.
    templated : contexts come from the chat template: control tokens are read, no start token is
        put before them.
    batch : texts that are generated together.
    """

    def __init__(self, model: Model, *, batch: int = 16) -> None:
        self.model, self.batch, self.templated = model, batch, False
        if model.tokenizer.absent:
            raise model.tokenizer.absent

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text at the beginning of a sequence."""
        start = None if not self.templated else False
        return self.model.tokenizer.encode(text, add_bos=start, parse_special=self.templated)

    @property
    def prefix_id(self) -> int:
        """Id of an empty context: the start token, or an end token where there is none."""
        tokenizer = self.model.tokenizer
        if tokenizer.bos_id is not None:
            return tokenizer.bos_id
        if not self.model.eos_ids:
            raise TokenizerError("there is neither start nor end token", where=self.model.name)
        return self.model.eos_ids[0]

    def pair_ids(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the ids of a context and of its continuation, as they are in the whole text.

        Spaces at the end of the context belong to the continuation, whose first token has them.
        """
        kept = context.rstrip()
        if not kept:
            ids = self.model.tokenizer.encode(context + continuation, add_bos=False)
            return [self.prefix_id], ids
        continuation, context = context[len(kept) :] + continuation, kept
        whole, start = self.encode(context + continuation), self.encode(context)
        return whole[: len(start)], whole[len(start) :]

    def likelihoods(
        self, pairs: Sequence[Pair], advance: Advance = lambda n: None
    ) -> list[Likelihood]:
        """Return the likelihood of each continuation after its context.

        Neighbours with one context have it computed once. What is longer than the model's context
        loses its beginning.
        """
        ids = [self._cut(*self.pair_ids(*pair)) for pair in pairs]
        found: list[Likelihood] = []
        for context, group in groupby(ids, key=lambda pair: pair[0]):
            wanted = [continuation for _, continuation in group]
            found += self.model.likelihoods(context, wanted)
            advance(len(wanted))
        return found

    def _cut(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        if not continuation:
            raise RequestError("a continuation has no tokens of its own", where="likelihoods")
        room = self.model.context + 1 - len(continuation)
        if room < 1:
            raise RequestError(
                f"a continuation has {len(continuation)} tokens, the context {self.model.context}",
                hint="load the model with a longer context",
            )
        return context[-room:], continuation

    def rolling(self, text: str) -> float:
        """Return ln p of a whole text: each token once, after as many tokens as fit."""
        ids = self.model.tokenizer.encode(text, add_bos=False)
        windows = rolling_windows(ids, self.prefix_id, self.model.context)
        found = [self.model.likelihoods(context, [targets])[0] for context, targets in windows]
        return math.fsum(one.logprob for one in found)

    def texts(
        self, requests: Sequence[tuple[str, Mapping[str, Any]]], advance: Advance = lambda n: None
    ) -> list[str]:
        """Generate a text for each (context, arguments); neighbours of one kind together."""
        made: list[str] = []
        for arguments, group in groupby(requests, key=lambda request: request[1]):
            options = generation_options(arguments)
            room = self.model.context - resolve(GenerateOptions, options).max_tokens
            prompts = [self.encode(text)[-max(room, 1) :] for text, _ in group]
            for start in range(0, len(prompts), self.batch):
                some = prompts[start : start + self.batch]
                made += [one.text for one in self.model.generate_many(some, **options)]
                advance(len(some))
        return made


def rolling_windows(
    ids: Sequence[int], prefix: int, longest: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield contexts and targets that cover a text: each token is a target once.

    Every window but the first has its last input at `longest` tokens, of which those of earlier
    windows are context.
    """
    for start in range(0, len(ids), longest):
        targets = list(ids[start : start + longest])
        if start == 0:
            yield [prefix], targets
        else:
            yield list(ids[start + len(targets) - longest - 1 : start]), targets


def generation_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `generate` for the arguments of a task.

    Raises
    ------
    RequestError : one of them is unknown here: leaving it out could change a score.
    """
    given = dict(arguments)
    until = given.pop("until", None) or ()
    options: dict[str, Any] = {"stop": (until,) if isinstance(until, str) else tuple(until)}
    for name in LENGTHS:
        length = given.pop(name, None)
        if length is not None:
            options["max_tokens"] = int(length)
    sampled = bool(given.pop("do_sample", float(given.get("temperature") or 0) > 0))
    for name in PASSED:
        value = given.pop(name, None)
        if value is not None and sampled:
            options[name] = value
    if given:
        raise RequestError(f"there is no option {next(iter(given))!r} here", where="generate_until")
    return ({"temperature": 1.0, "seed": 0} if sampled else {"temperature": 0.0}) | options
