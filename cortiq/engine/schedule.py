"""Who gets how many rows of the next batch: pure functions over numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE = 256
"""Steps that one point of priority is worth: so nobody waits for ever, whoever comes after."""


def urgency(served: int, priority: int, number: int) -> tuple[int, int]:
    """Order in which sequences are served, the least first: by when they last were, or came.

    A point of priority counts as having waited `PATIENCE` steps longer. Ties go to whoever came
    first.
    """
    return served - priority * PATIENCE, number


@dataclass(frozen=True)
class Need:
    """What a sequence could use.

    Attributes
    ----------
    rows : that it has to feed, at least 1. most : of one batch.
    decodes : whether these rows draw its next token.
    depth : ids that its policy would have drafted.
    urgency : see `urgency`.
    """

    rows: int
    most: int
    decodes: bool
    depth: int
    urgency: tuple[int, int]


@dataclass(frozen=True)
class Share:
    """What a sequence gets: rows of its own ids, and rows for drafted ones."""

    rows: int = 0
    depth: int = 0


def shares(needs: Sequence[Need], budget: int) -> list[Share]:
    """Divide the rows of a batch.

    First every decoding sequence gets its row, the most urgent first, so that long prompts hold
    nobody up; a prompt that is more urgent than all of them gets one before, so that they do not
    hold it up for ever either. What remains goes to drafts, at most half of it while prompts wait,
    then to prompts.
    """
    order = sorted(range(len(needs)), key=lambda i: needs[i].urgency)
    rows, depths = [0] * len(needs), [0] * len(needs)
    waits = [i for i in order[:1] if not needs[i].decodes and budget > 0]
    budget -= len(waits)
    for i in (i for i in order if needs[i].decodes):
        rows[i] = min(needs[i].rows, budget)
        budget -= rows[i]
    budget += len(waits)
    prompts = [i for i in order if not needs[i].decodes]
    drafts = min(budget // 2, budget - len(waits)) if prompts else budget
    for i in (i for i in order if rows[i] == needs[i].rows):
        depths[i] = min(needs[i].depth, drafts)
        drafts -= depths[i]
        budget -= depths[i]
    for i in prompts:  # the most urgent first: the row that was set aside is its own
        rows[i] = min(needs[i].rows, needs[i].most, budget)
        budget -= rows[i]
    return [Share(*pair) for pair in zip(rows, depths, strict=True)]
