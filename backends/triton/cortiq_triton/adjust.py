"""Biases and penalties of many rows of logits, by the ids that they concern.

An id's count is in a table of zeros, which every launch leaves as it found it: one launch counts
the ids of the histories by atomics, the next takes each count out by an exchange, so that whoever
finds it applies it, once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton.language as tl

from cortiq_triton import draw_numbers as columns
from cortiq_triton.language import INTERPRETED, Tensor, ceil_div, constant, device, kernel, launch
from cortiq_triton.order import AT, MASK, allowed, number, real
from cortiq_triton.scalar import outside, snapped

BLOCK = 4096 if INTERPRETED else 512
REPETITION, OVER_REPETITION, PRESENCE, FREQUENCY, HISTORY = map(
    constant,
    (columns.REPETITION, columns.OVER_REPETITION, columns.PRESENCE, columns.FREQUENCY,
     columns.HISTORY),
)  # fmt: skip


@kernel
def add_biases(
    x: Tensor, lines: Tensor, masks: Tensor, faults: Tensor, owners: Tensor, ids: Tensor,
    biases: Tensor, count: Tensor, n: Tensor, words: Tensor, MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """x = snap(x + bias) of ids [count] in rows `owners`; −1 is no row."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(owners + i, mask=i < count, other=-1).to(tl.int64)
    inside = row >= 0
    row = tl.maximum(row, 0)
    token = tl.load(ids + i, mask=inside, other=0)
    inside = allowed(masks, number(lines, row, MASK), token, inside, words, MASKED)
    at = x + row * n + token
    bias = tl.load(biases + i, mask=inside, other=0).to(tl.float32, bitcast=True)
    y = tl.load(at, mask=inside, other=0.0) + bias
    tl.store(faults + number(lines, row, AT), 1, mask=inside & outside(y))
    tl.store(at, snapped(y), mask=inside)


@device
def seen_ids(histories: Tensor, row: Tensor, i: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Addresses of ids of a row's history, and the ids."""
    at = tl.load(histories + row).to(tl.pointer_type(tl.int32)) + i
    return at, tl.load(at, mask=i < count, other=0)


@kernel
def count_ids(
    histories: Tensor,
    lines: Tensor,
    drawn: Tensor,
    counts: Tensor,
    n: Tensor,
    OWN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Count the ids of a part of a row's history. OWN: its last is the row's own, written first."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    count = number(lines, row, HISTORY)
    i = part * BLOCK + tl.arange(0, BLOCK)
    if part * BLOCK >= count:
        return
    at, token = seen_ids(histories, row, i, count - 1 if OWN else count)
    if OWN:
        last = i == count - 1
        token = tl.where(last, tl.load(drawn + row), token)
        tl.store(at, token, mask=last)
    tl.atomic_add(counts + row * n + token, 1, mask=i < count, sem="relaxed")


@kernel
def penalise(
    x: Tensor, lines: Tensor, masks: Tensor, faults: Tensor, histories: Tensor, counts: Tensor,
    n: Tensor, words: Tensor, MASKED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Penalties of the ids of a part of a row's history, of each where it is found first."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    count = number(lines, row, HISTORY)
    i = part * BLOCK + tl.arange(0, BLOCK)
    if part * BLOCK >= count:
        return
    _, token = seen_ids(histories, row, i, count)
    times = tl.atomic_xchg(counts + row * n + token, i * 0, mask=i < count, sem="relaxed")
    inside = (i < count) & (times > 0)
    inside = allowed(masks, number(lines, row, MASK), token, inside, words, MASKED)
    at = x + row * n + token
    y = tl.load(at, mask=inside, other=0.0)
    up, down = real(lines, row, REPETITION), real(lines, row, OVER_REPETITION)
    y = tl.where(y > 0.0, y * down, y * up) - real(lines, row, PRESENCE)
    y = y - real(lines, row, FREQUENCY) * times.to(tl.float32)
    tl.store(faults + number(lines, row, AT) + i * 0, 1, mask=inside & outside(y))
    tl.store(at, snapped(y), mask=inside)


def adjust(
    x: torch.Tensor, features: columns.Features, there: Mapping[str, torch.Tensor],
    faults: torch.Tensor, counts: torch.Tensor, longest: int, own: torch.Tensor | None,
) -> None:  # fmt: skip
    """Add biases to rows x [draws, n] and penalise them, in place.

    Parameters
    ----------
    counts : int32, zeros for n ids of each row.
    longest : ids that a history has at most.
    own : the rows' own ids, to be written as the last of their histories; None if they are there.
    """
    draws, n = x.shape
    masks, masked = there.get("masks", there["lines"]), features.masks > 0
    words = masks.shape[-1]
    if features.biases:
        lists = (there["bias_owners"], there["bias_ids"], there["biases"])
        launch(
            add_biases, (ceil_div(features.biases, BLOCK),), x, there["lines"], masks, faults,
            *lists, features.biases, n, words, MASKED=masked, BLOCK=BLOCK,
        )  # fmt: skip
    if features.penalties:
        grid = (ceil_div(longest, BLOCK), draws)
        lines, histories = there["lines"], there["histories"]
        drawn = lines if own is None else own
        launch(
            count_ids, grid, histories, lines, drawn, counts, n, OWN=own is not None, BLOCK=BLOCK
        )
        launch(
            penalise, grid, x, lines, masks, faults, histories, counts, n, words, MASKED=masked,
            BLOCK=BLOCK,
        )  # fmt: skip
