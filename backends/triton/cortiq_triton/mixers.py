"""Primitives whose state every position changes: convolution, the delta rule, the state space."""

from __future__ import annotations

import triton.language as tl

from cortiq.backend import extents
from cortiq_triton.language import Tensor, constant, device, kernel
from cortiq_triton.scalar import outside, snapped
from cortiq_triton.sums import add_in_order

MARK, KEPT = constant(extents.MARK), constant(extents.KEPT)
COPIES = constant(3)
"""States of a slot: the present one, and two marks."""


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


@device
def delta_step(
    state: Tensor, key: Tensor, decay: Tensor, value: Tensor, beta: Tensor, inside: Tensor,
    KP: tl.constexpr, BV: tl.constexpr, STEPS: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The state [KP, BV] after a row of a delta rule, and what may be a fault: k·α, the row's
    change, the state before it is snapped.
    """
    decayed = key * decay
    recalled = column_sums(state * snapped(decayed), KP, BV, STEPS)
    delta = (value - recalled) * beta
    after = state * decay + key * snapped(delta)
    return tl.where(inside, snapped(after), 0.0), decayed, delta, after


@device
def space_step(
    state: Tensor, write: Tensor, decay: Tensor, x: Tensor, delta: Tensor, inside: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The state [KP, BV] after a row of a state space, and what may be a fault: Δ·x, the state
    before it is snapped.
    """
    driven = delta * x
    after = state * decay + write * snapped(driven)
    return tl.where(inside, snapped(after), 0.0), driven, after


@device
def keep_row(
    kept: Tensor, position: Tensor, end: Tensor, key: Tensor, value: Tensor, decay: Tensor,
    beta: Tensor, h: Tensor, i: Tensor, j: Tensor, first: Tensor, H: tl.constexpr, G: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, DECAYS: tl.constexpr,
) -> None:  # fmt: skip
    """Keep what a row at `position` changes a state by: key [KP, 1], value [1, BV], decay, beta.

    Kept are rows from the last mark but one of a sequence that ends at `end`. `first` programs of a
    head keep what all its columns share, that of the first head of a group its key.
    """
    row = kept + (position % KEPT).to(tl.int64) * (G * DK + H * (DV + DECAYS + 1))
    held = position >= (end // MARK - 1) * MARK
    shared, k = held & first, row + h * G // H * DK + i
    keys = tl.where(shared & (h % (H // G) == 0), DK, 0)
    tl.store(k[:, None], key, mask=(i < keys)[:, None])
    columns = tl.where(held, DV, 0)
    tl.store((row + G * DK + h * DV + j)[None, :], value, mask=(j < columns)[None, :])
    behind = row + G * DK + H * DV
    decays = tl.where(shared, DECAYS, 0)
    tl.store((behind + h * DECAYS + i)[:, None], decay, mask=(i < decays)[:, None])
    tl.store(behind + H * DECAYS + h + i * 0, beta, mask=i < tl.where(shared, 1, 0))


@device
def keep_mark(
    at: Tensor, state: Tensor, inside: Tensor, length: Tensor, end: Tensor, SIZE: tl.constexpr
) -> None:
    """Keep a state after `length` rows in its place behind the state, if it stays one of two."""
    if (length % MARK == 0) & (length >= (end // MARK - 1) * MARK):
        tl.store(at + SIZE * (1 + length // MARK % 2), state, mask=inside)


@kernel
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, fixed: Tensor, starts: Tensor,
    stops: Tensor, positions: Tensor, out: Tensor, faults: Tensor, offset: Tensor,
    H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr,
    BV: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr,
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
        b = tl.load(beta + r * H + h)
        state, decayed, delta, after = delta_step(
            state, key, decay, value, b, inside, KP, BV, STEPS
        )
        o = column_sums(state * query, KP, BV, STEPS)
        bad = any_outside(decayed, (i < DK)[:, None]) | any_outside(after, inside)
        bad |= any_outside(delta, (j < DV)[None, :]) | any_outside(o, (j < DV)[None, :])
        tl.store(out + value_at[None, :], snapped(o), mask=(j < DV)[None, :])
        if bad > 0:
            tl.store(faults + r, 1)
        keep_row(
            base + COPIES * H * DK * DV, begun + r, begun + last, key, value, decay, b, h, i, j,
            tl.program_id(2) == 0, H, G, DK, DV, DK if CHANNELS else 1,
        )  # fmt: skip
        keep_mark(at, state, inside, begun + r + 1, begun + last, H * DK * DV)
    tl.store(at, state, mask=inside)


@kernel
def state_space(
    x: Tensor, b: Tensor, c: Tensor, alpha: Tensor, delta: Tensor, fixed: Tensor, starts: Tensor,
    stops: Tensor, positions: Tensor, out: Tensor, faults: Tensor, offset: Tensor,
    H: tl.constexpr, G: tl.constexpr, DN: tl.constexpr, DP: tl.constexpr, KP: tl.constexpr,
    BV: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr,
) -> None:  # fmt: skip
    """One sequence and head, BV columns of its state: the rows of the batch in order.

    Behind the state are its marks and the rows kept to go back; see `recurrences`.
    """
    sequence, h = tl.program_id(0), tl.program_id(1)
    i, j = tl.arange(0, KP), tl.program_id(2) * BV + tl.arange(0, BV)
    inside = (i < DN)[:, None] & (j < DP)[None, :]
    base = (tl.load(fixed + sequence) + offset).to(tl.pointer_type(tl.float32))
    at = base + h * DN * DP + i[:, None] * DP + j[None, :]
    state = tl.load(at, mask=inside, other=0.0)
    first, last = tl.load(starts + sequence), tl.load(stops + sequence)
    begun = tl.load(positions + first, mask=first < last, other=0) - first
    for r in range(first, last):
        group_at = (r * G + h * G // H).to(tl.int64) * DN + i
        write = tl.load(b + group_at, mask=i < DN, other=0.0)[:, None]
        read = tl.load(c + group_at, mask=i < DN, other=0.0)[:, None]
        value_at = (r * H + h).to(tl.int64) * DP + j
        value = tl.load(x + value_at, mask=j < DP, other=0.0)[None, :]
        head = r * H + h
        decays = alpha + (head.to(tl.int64) * DN + i if CHANNELS else head + i * 0)
        decay, step = tl.load(decays, mask=i < DN, other=0.0)[:, None], tl.load(delta + head)
        state, driven, after = space_step(state, write, decay, value, step, inside)
        o = column_sums(state * read, KP, BV, STEPS)
        bad = any_outside(after, inside) | any_outside(driven, (j < DP)[None, :])
        bad |= any_outside(o, (j < DP)[None, :])
        tl.store(out + value_at[None, :], snapped(o), mask=(j < DP)[None, :])
        if bad > 0:
            tl.store(faults + r, 1)
        keep_row(
            base + COPIES * H * DN * DP, begun + r, begun + last, write, value, decay, step, h, i,
            j, tl.program_id(2) == 0, H, G, DN, DP, DN if CHANNELS else 1,
        )  # fmt: skip
        keep_mark(at, state, inside, begun + r + 1, begun + last, H * DN * DP)
    tl.store(at, state, mask=inside)


@kernel
def replay(
    block: Tensor, offsets: Tensor, mark: Tensor, until: Tensor, H: tl.constexpr, G: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, DECAYS: tl.constexpr, DELTA: tl.constexpr,
    KP: tl.constexpr, BV: tl.constexpr, STEPS: tl.constexpr,
) -> None:  # fmt: skip
    """One slot and head of a block, BV columns of its state: from a mark through the rows kept, to
    what it was after `until` rows. Mark 0 is before the first row.
    """
    h, i = tl.program_id(1), tl.arange(0, KP)
    j = tl.program_id(2) * BV + tl.arange(0, BV)
    inside = (i < DK)[:, None] & (j < DV)[None, :]
    base = (block + tl.load(offsets + tl.program_id(0))).to(tl.pointer_type(tl.float32))
    at = base + h * DK * DV + i[:, None] * DV + j[None, :]
    place = H * DK * DV * (1 + mark // MARK % 2)
    state = tl.load(at + place, mask=inside & (i[:, None] * 0 + mark > 0), other=0.0)
    for position in range(mark, until):
        row = base + COPIES * H * DK * DV
        row += (position % KEPT) * (G * DK + H * (DV + DECAYS + 1))
        key = tl.load(row + h * G // H * DK + i, mask=i < DK, other=0.0)[:, None]
        value = tl.load(row + G * DK + h * DV + j, mask=j < DV, other=0.0)[None, :]
        behind = row + G * DK + H * DV
        shared = tl.minimum(i, DECAYS - 1)
        decay = tl.load(behind + h * DECAYS + shared, mask=i < DK, other=0.0)[:, None]
        beta = tl.load(behind + H * DECAYS + h)
        if DELTA:
            state, _, _, _ = delta_step(state, key, decay, value, beta, inside, KP, BV, STEPS)
        else:
            state, _, _ = space_step(state, key, decay, value, beta, inside)
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
