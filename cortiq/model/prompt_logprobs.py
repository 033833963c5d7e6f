"""Log-probabilities of a prompt's own tokens, each after those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cortiq.backend import Executable, Named, Top
from cortiq.engine.output import LOGITS, TokenLogprobs, token_logprobs
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Session
from cortiq.model.score import ROWS
from cortiq.numerics.contract import F32


@dataclass(frozen=True)
class PromptToken:
    """Log-probabilities of a prompt's token and of the most likely ones in its place.

    Attributes
    ----------
    rank : 1 for the most likely token; tokens of equal logits share the better rank.
    """

    logprobs: TokenLogprobs
    rank: int


def prompt_logprob_steps(
    executable: Executable, ids: Sequence[int], top: int
) -> Iterator[list[PromptToken] | None]:
    """Yield None after each `ROWS` tokens, and at last the entries of all tokens but the first.

    Parameters
    ----------
    top : most likely tokens to report for each place.

    Raises
    ------
    RequestError : the prompt cannot be served.
    """
    tokens = check_prompt(ids, executable.program)
    wants = (Named("logits"), Top(max(1, top)))
    made: list[PromptToken] = []
    inputs, targets = tokens[:-1], tokens[1:]
    with Session(executable, max(len(inputs), 1)) as session:
        for start in range(0, len(inputs), ROWS):
            fed = session.feed(inputs[start : start + ROWS], wants, every=True)
            for row, target in zip(
                session.read_rows(fed), targets[start : start + ROWS], strict=True
            ):
                logits = np.asarray(row[LOGITS], F32)
                rank = 1 + int(np.count_nonzero(logits > logits[target]))
                made.append(PromptToken(token_logprobs(row, target, top), rank))
            yield None
    yield made
