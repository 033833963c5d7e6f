"""Primitives whose state every position changes: convolution, the delta rule, the state space."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, device, kernel
from cortiq_triton.scalar import outside, snapped
from cortiq_triton.sums import add_in_order


@kernel
def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor, fixed: Tensor, owners: Tensor, positions: Tensor,
    starts: Tensor, out: Tensor, faults: Tensor, R: Tensor, C: Tensor, offset: Tensor,
    ring: Tensor, TAPS: tl.constexpr, BIAS: tl.constexpr, RB: tl.constexpr, BC: tl.constexpr,
) -> None:  # fmt: skip
    """Taps in order, the oldest row first: rows of the batch, or before it those of the ring."""
    r, c = tl.program_id(0) * RB + tl.arange(0, RB), tl.program_id(1) * BC + tl.arange(0, BC)
    live, inside = r < R, c < C
    sequence = tl.load(owners + r, mask=live, other=0)
    start = tl.load(starts + sequence, mask=live, other=0)
    position = tl.load(positions + r, mask=live, other=0)
    address = tl.load(fixed + sequence, mask=live, other=0) + offset
    rows = address.to(tl.pointer_type(tl.float32))
    y = tl.full((RB, BC), 0.0, tl.float32)
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        here = live & (r - back >= start)
        before = live & (r - back < start) & (position - back >= 0)
        new = x + (r - back).to(tl.int64)[:, None] * C + c[None, :]
        old = (
            rows[:, None] + ((position - back + ring) % ring).to(tl.int64)[:, None] * C + c[None, :]
        )
        value = tl.load(new, mask=here[:, None] & inside[None, :], other=0.0)
        kept = tl.load(old, mask=before[:, None] & inside[None, :], other=0.0)
        value = tl.where(here[:, None], value, kept)
        y = y + tl.load(weight + c * TAPS + tap, mask=inside, other=0.0)[None, :] * value
    if BIAS:
        y = y + tl.load(bias + c, mask=inside, other=0.0)[None, :]
    mask = live[:, None] & inside[None, :]
    tl.store(out + r.to(tl.int64)[:, None] * C + c[None, :], snapped(y), mask=mask)
    tl.store(faults + r[:, None] + c[None, :] * 0, 1, mask=mask & outside(y))


@kernel
def keep_rows(
    x: Tensor, fixed: Tensor, owners: Tensor, positions: Tensor, stops: Tensor, R: Tensor,
    C: Tensor, offset: Tensor, ring: Tensor, RB: tl.constexpr, BC: tl.constexpr,
) -> None:  # fmt: skip
    """Each sequence's last rows into its ring."""
    r, c = tl.program_id(0) * RB + tl.arange(0, RB), tl.program_id(1) * BC + tl.arange(0, BC)
    live, inside = r < R, c < C
    sequence = tl.load(owners + r, mask=live, other=0)
    last = tl.load(stops + sequence, mask=live, other=0)
    position = tl.load(positions + r, mask=live, other=0)
    address = tl.load(fixed + sequence, mask=live, other=0) + offset
    rows = address.to(tl.pointer_type(tl.float32))
    mask = (live & (last - r <= ring))[:, None] & inside[None, :]
    value = tl.load(x + r.to(tl.int64)[:, None] * C + c[None, :], mask=mask, other=0.0)
    tl.store(
        rows[:, None] + (position % ring).to(tl.int64)[:, None] * C + c[None, :], value, mask=mask
    )


@device
def column_sums(x: Tensor, KP: tl.constexpr, BV: tl.constexpr, STEPS: tl.constexpr) -> Tensor:
    """The contract's sum over the first axis of x [KP, BV]: [1, BV]; 2^STEPS lanes, at most 256."""
    lanes = x + 0.0
    if KP > 256:
        chunks = tl.permute(tl.reshape(x, (KP // 256, 256, BV)), (1, 2, 0))
        nothing = tl.full((256 * BV,), 0.0, tl.float32)
        chunks = tl.reshape(chunks, (256 * BV, KP // 256))
        lanes = tl.reshape(add_in_order(nothing, chunks, KP // 256, 256 * BV), (256, BV))
    for step in tl.static_range(STEPS):
        halves = tl.permute(tl.reshape(lanes, (2, (1 << STEPS) >> (step + 1), BV)), (1, 2, 0))
        first, second = tl.split(halves)
        lanes = first + second
    return tl.reshape(lanes, (1, BV))


@device
def any_outside(y: Tensor, inside: Tensor) -> Tensor:
    """1 where a value of the two axes is a fault."""
    return tl.max(tl.max((outside(y) & inside).to(tl.int32), 1), 0)


@kernel
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, fixed: Tensor, starts: Tensor,
    stops: Tensor, out: Tensor, faults: Tensor, offset: Tensor, H: tl.constexpr, G: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr, STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:  # fmt: skip
    """One sequence and head, BV columns of its state: the rows of the batch in order."""
    sequence, h = tl.program_id(0), tl.program_id(1)
    i, j = tl.arange(0, KP), tl.program_id(2) * BV + tl.arange(0, BV)
    inside = (i < DK)[:, None] & (j < DV)[None, :]
    base = (tl.load(fixed + sequence) + offset).to(tl.pointer_type(tl.float32))
    at = base + h * DK * DV + i[:, None] * DV + j[None, :]
    state = tl.load(at, mask=inside, other=0.0)
    first, last = tl.load(starts + sequence), tl.load(stops + sequence)
    for r in range(first, last):
        key_at = (r * G + h * G // H).to(tl.int64) * DK + i
        key = tl.load(k + key_at, mask=i < DK, other=0.0)[:, None]
        query = tl.load(q + key_at, mask=i < DK, other=0.0)[:, None]
        value_at = (r * H + h).to(tl.int64) * DV + j
        value = tl.load(v + value_at, mask=j < DV, other=0.0)[None, :]
        if CHANNELS:
            decay = tl.load(alpha + (r * H + h) * DK + i, mask=i < DK, other=0.0)[:, None]
        else:
            decay = tl.load(alpha + r * H + h + i * 0)[:, None]
        decayed = key * decay
        recalled = column_sums(state * snapped(decayed), KP, BV, STEPS)
        delta = (value - recalled) * tl.load(beta + r * H + h)
        after = state * decay + key * snapped(delta)
        state = tl.where(inside, snapped(after), 0.0)
        o = column_sums(state * query, KP, BV, STEPS)
        bad = any_outside(decayed, (i < DK)[:, None]) | any_outside(after, inside)
        bad |= any_outside(delta, (j < DV)[None, :]) | any_outside(o, (j < DV)[None, :])
        tl.store(out + value_at[None, :], snapped(o), mask=(j < DV)[None, :])
        if bad > 0:
            tl.store(faults + r, 1)
    tl.store(at, state, mask=inside)


@kernel
def state_space(
    x: Tensor, b: Tensor, c: Tensor, alpha: Tensor, delta: Tensor, fixed: Tensor, starts: Tensor,
    stops: Tensor, out: Tensor, faults: Tensor, offset: Tensor, H: tl.constexpr, G: tl.constexpr,
    DN: tl.constexpr, DP: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr, STEPS: tl.constexpr,
) -> None:  # fmt: skip
    """One sequence and head, BV columns of its state: the rows of the batch in order."""
    sequence, h = tl.program_id(0), tl.program_id(1)
    i, j = tl.arange(0, KP), tl.program_id(2) * BV + tl.arange(0, BV)
    inside = (i < DN)[:, None] & (j < DP)[None, :]
    base = (tl.load(fixed + sequence) + offset).to(tl.pointer_type(tl.float32))
    at = base + h * DN * DP + i[:, None] * DP + j[None, :]
    state = tl.load(at, mask=inside, other=0.0)
    first, last = tl.load(starts + sequence), tl.load(stops + sequence)
    for r in range(first, last):
        group_at = (r * G + h * G // H).to(tl.int64) * DN + i
        write = tl.load(b + group_at, mask=i < DN, other=0.0)[:, None]
        read = tl.load(c + group_at, mask=i < DN, other=0.0)[:, None]
        value_at = (r * H + h).to(tl.int64) * DP + j
        driven = tl.load(delta + r * H + h) * tl.load(x + value_at, mask=j < DP, other=0.0)[None, :]
        after = state * tl.load(alpha + r * H + h) + write * snapped(driven)
        state = tl.where(inside, snapped(after), 0.0)
        o = column_sums(state * read, KP, BV, STEPS)
        bad = any_outside(after, inside) | any_outside(driven, (j < DP)[None, :])
        bad |= any_outside(o, (j < DP)[None, :])
        tl.store(out + value_at[None, :], snapped(o), mask=(j < DP)[None, :])
        if bad > 0:
            tl.store(faults + r, 1)
    tl.store(at, state, mask=inside)


@kernel
def combine_experts(
    weights: Tensor, values: Tensor, out: Tensor, faults: Tensor, n: Tensor, K: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """One row: y = y + RN(w·out) in ascending index of the experts."""
    r, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    y = tl.full((WIDTH,), 0.0, tl.float32)
    for k in range(K):
        value = tl.load(values + (r * K + k) * n + i, mask=i < n, other=0.0)
        y = y + tl.load(weights + r * K + k) * value
    tl.store(out + r * n + i, snapped(y), mask=i < n)
    tl.store(faults + r + i * 0, 1, mask=(i < n) & outside(y))
