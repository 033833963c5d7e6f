"""The most likely ids of rows, and the logarithm of the sum of exponentials."""

from __future__ import annotations

import torch
import triton.language as tl

from cortiq_triton import draw_numbers as columns
from cortiq_triton.language import INTERPRETED, Tensor, kernel, launch, pow2
from cortiq_triton.order import extremes
from cortiq_triton.prefix import Prefixes, surveyed
from cortiq_triton.scalar import exp, fold, log, outside, snapped

UNROLLED = 1 if INTERPRETED else 16
"""Terms of a lane that are read before the first is added."""


@kernel
def log_sum_exp(
    x: Tensor, spread: Tensor, scales: Tensor, tokens: Tensor, out: Tensor, chosen: Tensor,
    faults: Tensor, n: Tensor, parts: Tensor, SCALED: tl.constexpr, CHOSEN: tl.constexpr,
    UNROLLED: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """One row: snap(m + log(canonical_sum(exp(x − m)))), of snap(x·scale) where it is SCALED.

    CHOSEN: also the logit of the row's token.
    """
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, 256)
    largest, _ = extremes(spread, row, parts, PP)
    one = row + tl.full((1, 1), 0, tl.int32)
    if CHOSEN:
        token = tl.load(tokens + one)
        logit = tl.load(x + row * n + token, mask=token >= 0, other=0.0)
        if SCALED:
            logit = logit * tl.load(scales + row)
            tl.store(faults + one, 1, mask=outside(logit))
        tl.store(chosen + one, snapped(logit))
    if SCALED:
        scale = tl.load(scales + row)
        largest = snapped(largest * scale)
    lanes = tl.full((256,), 0.0, tl.float32)
    for start in range(0, n, 256 * UNROLLED):
        for turn in tl.static_range(UNROLLED):
            column = start + turn * 256 + lane
            inside = column < n
            value = tl.load(x + row * n + column, mask=inside, other=0.0)
            if SCALED:
                value = snapped(value * scale)
            lanes += tl.where(inside, exp(tl.where(inside, value - largest, 0.0)), 0.0)
    y = largest + log(fold(lanes[None, :], 1))
    tl.store(out + one, snapped(y))
    tl.store(faults + one, 1, mask=outside(y))


def ordered(x: torch.Tensor, count: int = 0) -> Prefixes:
    """Rows x [rows, n] by their values, ready for the first `count`."""
    lines = torch.zeros((len(x), columns.COLUMNS), dtype=torch.int32, device=x.device)
    lines[:, columns.PLACE] = torch.arange(len(x), dtype=torch.int32, device=x.device)
    lines[:, columns.TOP_K] = count
    lines[:, columns.MASK] = -1
    return surveyed(x, lines, None, lines, raw=True, filtered=count > 0)


def sums_of(
    found: Prefixes,
    faults: torch.Tensor,
    tokens: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logit of a token and logsumexp of each row, of its logits times its scale: float32 [rows].

    Parameters
    ----------
    scales : float32 [rows]; None for 1. tokens : int32 [rows]; the first part means nothing
        without them, or where one is negative.
    """
    x = found.values
    out = torch.empty(len(x), dtype=torch.float32, device=x.device)
    chosen = out if tokens is None else torch.empty_like(out)
    launch(
        log_sum_exp, (len(x),), x, found.spread, x if scales is None else scales,
        found.lines if tokens is None else tokens, out, chosen, faults, found.n, found.parts,
        SCALED=scales is not None, CHOSEN=tokens is not None, UNROLLED=UNROLLED,
        PP=pow2(found.parts), warps=8,
    )  # fmt: skip
    return chosen, out


def most_likely(found: Prefixes, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The n largest of each row by (value descending, id ascending): ids, values."""
    found.cut(True, False)
    keys = torch.sort(found.keep(n), dim=1).values
    ids = (keys & ((1 << found.shift) - 1)).clamp_(max=found.n - 1)
    return ids.int(), found.values.gather(1, ids)
