"""Division of a batch's rows among sequences: pure functions over numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STEP = 128
"""Rows of prompts beside decoding ones make a batch a multiple of this: matrix units take rows in
tiles."""
PATIENCE = 256
"""Steps that one point of priority is worth; bounded, so that no request starves."""


def urgency(served: int, priority: int, number: int) -> tuple[int, int]:
    """Return a sort key, the most urgent least: by the step last served in, or of arrival.

    Each point of priority ages a request by `PATIENCE` steps. Ties go to the earlier request.
    """
    return served - priority * PATIENCE, number


class RowDemand(NamedTuple):
    """Rows that a sequence can use.

    Attributes
    ----------
    rows : rows it has to feed, at least 1. most : its rows in one batch at most.
    decodes : whether these rows draw its next token.
    depth : draft depth that its policy chose.
    urgency : see `urgency`.
    """

    rows: int
    most: int
    decodes: bool
    depth: int
    urgency: tuple[int, int]


class RowGrant(NamedTuple):
    """Rows that a sequence gets: for its own ids, and for drafted ones."""

    rows: int = 0
    depth: int = 0


def divide_rows(
    demands: Sequence[RowDemand], budget: int, prompt_rows: int | None = None
) -> list[RowGrant]:
    """Divide the rows of a batch.

    Every decoding sequence gets its row first, the most urgent first, so that long prompts delay
    no decoding; a prompt more urgent than all of them gets one row before, so that decoding cannot
    starve it. The rest goes to drafts, at most half of it while prompts wait, then to prompts:
    beside decoding ones at most `prompt_rows`, if given, so that the batch is a multiple of `STEP`
    if they are: batches of few sizes, which a device has tiles and captured launches for.
    """
    order = sorted(range(len(demands)), key=lambda i: demands[i].urgency)
    rows, depths = [0] * len(demands), [0] * len(demands)
    waits = [i for i in order[:1] if not demands[i].decodes and budget > 0]
    budget -= len(waits)
    for i in (i for i in order if demands[i].decodes):
        rows[i] = min(demands[i].rows, budget)
        budget -= rows[i]
    budget += len(waits)
    prompts = [i for i in order if not demands[i].decodes]
    drafts = min(budget // 2, budget - len(waits)) if prompts else budget
    for i in (i for i in order if rows[i] == demands[i].rows):
        depths[i] = min(demands[i].depth, drafts)
        drafts -= depths[i]
        budget -= depths[i]
    if prompt_rows is not None and len(prompts) < len(demands):
        others = sum(rows) + sum(depths)
        budget = min(budget, max(prompt_rows - others % STEP, len(waits)))
    for i in prompts:  # the most urgent first: the row that was set aside is its own
        rows[i] = min(demands[i].rows, demands[i].most, budget)
        budget -= rows[i]
    return [RowGrant(*pair) for pair in zip(rows, depths, strict=True)]
