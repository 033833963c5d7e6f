"""Likelihoods of continuations after one context, as multiple-choice tests need them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cortiq.backend import Executable, Named, Top
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Session
from cortiq.errors import RequestError
from cortiq.model.score import ROWS
from cortiq.numerics.contract import F32

WANTS = (Named("logits"), Top(1))


@dataclass(frozen=True)
class Likelihood:
    """Likelihood of a continuation.

    Attributes
    ----------
    token_logprobs : ln p of each of its tokens: RN(logit − log_sum_exp(logits)), as float32, so
        that the bits are the contract's.
    logprob : their sum, exact and then rounded once to float64.
    greedy : whether each token is the argmax of its row: what temperature 0 would have generated.
    """

    token_logprobs: tuple[float, ...]
    logprob: float
    greedy: bool


def likelihoods_of(
    executable: Executable, context: Sequence[int], continuations: Sequence[Sequence[int]]
) -> Iterator[Likelihood]:
    """Yield the likelihood of each continuation; the context is computed once for all of them.

    Raises
    ------
    RequestError : context or a continuation is empty, out of the vocabulary, or too long together.
    """
    program = executable.program
    context = check_prompt(context, program)
    if not all(continuations):
        raise RequestError("a continuation is empty", hint="give each at least one token")
    wanted = [check_prompt(continuation, program) for continuation in continuations]
    for targets in wanted:
        check_prompt([*context, *targets[:-1]], program)  # the last one is predicted, and not fed
    longest = max(map(len, wanted), default=1)
    with Session(executable, len(context) + longest - 1) as session:
        _feed(session, context[:-1])
        start = session.state.snapshot() if len(wanted) > 1 else None
        for number, targets in enumerate(wanted):
            if number and start is not None:
                session.state.restore(start)
                session.length = len(context) - 1
            yield _summary(list(_followed(session, context[-1], targets)))


def _feed(session: Session, ids: Sequence[int]) -> None:
    for start in range(0, len(ids), ROWS):
        session.read_rows(session.feed(ids[start : start + ROWS], ()))


def _followed(session: Session, last: int, targets: Sequence[int]) -> Iterator[tuple[float, bool]]:
    """Yield ln p of each target after what was fed and `last`, and whether it is the argmax."""
    inputs = [last, *targets[:-1]]
    for start in range(0, len(targets), ROWS):
        rows = session.read_rows(session.feed(inputs[start : start + ROWS], WANTS, every=True))
        for row, target in zip(rows, targets[start : start + ROWS], strict=True):
            best, _, total = row[WANTS[1]]
            logit = np.asarray(row[WANTS[0]], F32)[target]
            yield float(logit - np.ravel(np.asarray(total, F32))[0]), int(best[0]) == target


def _summary(found: Sequence[tuple[float, bool]]) -> Likelihood:
    logprobs = tuple(value for value, _ in found)
    return Likelihood(logprobs, math.fsum(logprobs), all(best for _, best in found))
