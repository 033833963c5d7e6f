"""The diagonal delta rule, and how its state goes back."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, device, kernel
from cortiq_triton.mixers import COPIES, KEPT, MARK, any_outside, column_sums, keep_mark
from cortiq_triton.scalar import snapped


@device
def diagonal_step(
    state: Tensor, key: Tensor, decay: Tensor, value: Tensor, kappa: Tensor, beta: Tensor,
    inside: Tensor, KP: tl.constexpr, BV: tl.constexpr, STEPS: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The state [KP, BV] after a row, and what may be a fault: Sᵀ·κ, the state before it is
    snapped.
    """
    recalled = column_sums(state * kappa, KP, BV, STEPS)
    after = (state * decay - beta * snapped(recalled)) + key * value
    return tl.where(inside, snapped(after), 0.0), recalled, after


@device
def kept_row(
    base: Tensor, position: Tensor, H: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr
) -> Tensor:
    """Return where a position's row is kept: k, v, then α, κ and β of each head in turn."""
    row = base + COPIES * H * DK * DV
    return row + (position % KEPT).to(tl.int64) * (H * (4 * DK + DV + 1))


@kernel
def diagonal_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, kappas: Tensor, betas: Tensor, fixed: Tensor,
    starts: Tensor, stops: Tensor, positions: Tensor, out: Tensor, faults: Tensor, offset: Tensor,
    H: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:  # fmt: skip
    """One sequence and head, BV columns of its state: the rows of the batch in order.

    Behind the state are its marks and the rows kept to go back; see `recurrences`.
    """
    sequence, h = tl.program_id(0), tl.program_id(1)
    i, j = tl.arange(0, KP), tl.program_id(2) * BV + tl.arange(0, BV)
    inside = (i < DK)[:, None] & (j < DV)[None, :]
    base = (tl.load(fixed + sequence) + offset).to(tl.pointer_type(tl.float32))
    at = base + h * DK * DV + i[:, None] * DV + j[None, :]
    state = tl.load(at, mask=inside, other=0.0)
    first, last = tl.load(starts + sequence), tl.load(stops + sequence)
    begun = tl.load(positions + first, mask=first < last, other=0) - first
    end = begun + last
    for r in range(first, last):
        key_at, position = (r * H + h).to(tl.int64) * DK + i, begun + r
        query = tl.load(q + key_at, mask=i < DK, other=0.0)[:, None]
        key = tl.load(k + key_at, mask=i < DK, other=0.0)
        decay = tl.load(alpha + key_at, mask=i < DK, other=0.0)
        kappa = tl.load(kappas + key_at, mask=i < DK, other=0.0)
        beta = tl.load(betas + key_at, mask=i < DK, other=0.0)
        value_at = (r * H + h).to(tl.int64) * DV + j
        value = tl.load(v + value_at, mask=j < DV, other=0.0)
        state, recalled, after = diagonal_step(
            state, key[:, None], decay[:, None], value[None, :], kappa[:, None], beta[:, None],
            inside, KP, BV, STEPS,
        )  # fmt: skip
        o = column_sums(state * query, KP, BV, STEPS)
        bad = any_outside(recalled, (j < DV)[None, :]) | any_outside(after, inside)
        bad |= any_outside(o, (j < DV)[None, :])
        tl.store(out + value_at[None, :], snapped(o), mask=(j < DV)[None, :])
        if bad > 0:
            tl.store(faults + r, 1)
        held = position >= (end // MARK - 1) * MARK
        row, keys = kept_row(base, position, H, DK, DV), tl.where(held, DK, 0)
        keys = tl.where(tl.program_id(2) == 0, keys, 0)
        rest = row + H * (DK + DV) + h * 3 * DK + i
        tl.store(row + h * DK + i, key, mask=i < keys)
        tl.store(row + H * DK + h * DV + j, value, mask=j < tl.where(held, DV, 0))
        tl.store(rest, decay, mask=i < keys)
        tl.store(rest + DK, kappa, mask=i < keys)
        tl.store(rest + 2 * DK, beta, mask=i < keys)
        keep_mark(at, state, inside, position + 1, end, H * DK * DV)
    tl.store(at, state, mask=inside)


@kernel
def replay_diagonal(
    block: Tensor, offsets: Tensor, mark: Tensor, until: Tensor, H: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr, STEPS: tl.constexpr,
) -> None:  # fmt: skip
    """One slot and head of a block, BV columns of its state: see `mixers.replay`."""
    h, i = tl.program_id(1), tl.arange(0, KP)
    j = tl.program_id(2) * BV + tl.arange(0, BV)
    inside = (i < DK)[:, None] & (j < DV)[None, :]
    base = (block + tl.load(offsets + tl.program_id(0))).to(tl.pointer_type(tl.float32))
    at = base + h * DK * DV + i[:, None] * DV + j[None, :]
    place = H * DK * DV * (1 + mark // MARK % 2)
    state = tl.load(at + place, mask=inside & (i[:, None] * 0 + mark > 0), other=0.0)
    for position in range(mark, until):
        row = kept_row(base, i * 0 + position, H, DK, DV)
        key = tl.load(row + h * DK + i, mask=i < DK, other=0.0)[:, None]
        column = kept_row(base, j * 0 + position, H, DK, DV)
        value = tl.load(column + H * DK + h * DV + j, mask=j < DV, other=0.0)[None, :]
        rest = row + H * (DK + DV) + h * 3 * DK + i
        decay = tl.load(rest, mask=i < DK, other=0.0)[:, None]
        kappa = tl.load(rest + DK, mask=i < DK, other=0.0)[:, None]
        beta = tl.load(rest + 2 * DK, mask=i < DK, other=0.0)[:, None]
        state, _, _ = diagonal_step(state, key, decay, value, kappa, beta, inside, KP, BV, STEPS)
    tl.store(at, state, mask=inside)
