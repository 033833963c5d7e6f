"""Log-probabilities of a prompt's own tokens, each after those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.backend import Executable, Named, Top
from cortiq.engine.output import TokenLogprobs
from cortiq.engine.overlay import ChosenOverlay, session_inputs
from cortiq.engine.prompt_images import PromptImages, check_text_ids, compute_rows
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Session
from cortiq.model.score import ROWS
from cortiq.numerics.contract import F32, Floats


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
    executable: Executable,
    ids: Sequence[int],
    top: int,
    overlay: ChosenOverlay | None = None,
    images: PromptImages | None = None,
) -> Iterator[list[PromptToken] | None]:
    """Yield None after each `ROWS` tokens, and at last the entries of all tokens but the first.

    Parameters
    ----------
    top : most likely tokens to report for each place. overlay : that computes them.
    images : those of the prompt.

    Raises
    ------
    RequestError : the prompt cannot be served.
    """
    tokens = check_prompt(ids, executable.program)
    wants = Named("logits"), Top(max(1, top))
    made: list[PromptToken] = []
    compute_rows(images, executable.program)
    chosen = session_inputs(overlay)
    inputs, targets = tokens[:-1], tokens[1:]
    check_text_ids(inputs, images, executable.program)
    attended = None if images is None else images.attended
    with Session(executable, max(len(inputs), attended.count if attended else 1)) as session:
        if attended is not None:
            attended.store(executable, session.state)
        start = 0
        while start < len(inputs):
            rows = min(ROWS, len(inputs) - start)
            if images is not None:
                rows = min(images.whole_rows(start, rows), len(inputs) - start)
            places = range(start, start + rows)
            part = [images.fed(at, inputs[at]) if images else inputs[at] for at in places]
            given = [{**chosen, **(images.inputs(at) if images else {})} for at in places]
            fed = session.feed_each(part, [wants] * rows, given)
            for row, target in zip(session.read_rows(fed), targets[start:][:rows], strict=True):
                made.append(_entry(np.asarray(row[wants[0]], F32), row[wants[1]], target, top))
            start += rows
            yield None
    yield made


def _entry(logits: Floats, tops: tuple[Any, Any, Any], target: int, count: int) -> PromptToken:
    """Return a token's entry from the logits it was to be drawn from, and the largest of them."""
    ids, values, sums = tops
    total = F32(np.asarray(sums).item())
    top = zip(ids[:count].tolist(), (values[:count] - total).tolist(), strict=True)
    made = TokenLogprobs(target, float(logits[target] - total), tuple(top))
    return PromptToken(made, 1 + int(np.count_nonzero(logits > logits[target])))
