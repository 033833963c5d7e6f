"""The kernel that takes heads into attention: queries to planes, keys and values into the cache."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.heads import flag, store_columns, store_heads
from cortiq_triton.language import Tensor, begin, device, kernel
from cortiq_triton.rows import exponent_of
from cortiq_triton.scalar import magnitude_bits
from cortiq_triton.tile import page_of, slot_of


@device
def store_values(
    x: Tensor, faults: Tensor, r: Tensor, live: Tensor, head: Tensor, place: Tensor,
    plane: Tensor, exponent: Tensor, heads: tl.constexpr, width: tl.constexpr,
    HALF: tl.constexpr, REST: tl.constexpr, BESIDE: tl.constexpr, EACH: tl.constexpr,
) -> None:  # fmt: skip
    """As `store_heads` of values that are only quantised, in HALF and REST columns."""
    source = x + (r.to(tl.int64) * heads + head) * width
    i, j = tl.arange(0, HALF), HALF + tl.arange(0, REST)
    low, high = live[:, None] & (i < width)[None, :], live[:, None] & (j < width)[None, :]
    begin()
    for _ in range(EACH):
        a = tl.load(source[:, None] + i[None, :], mask=low, other=0.0)
        b = tl.load(source[:, None] + j[None, :], mask=high, other=0.0)
        bits = tl.maximum(tl.max(magnitude_bits(a), 1), tl.max(magnitude_bits(b), 1))
        flag(bits, faults + r, live)
        largest = bits[:, None]
        store_columns(a, largest, place, plane, live, i, width, BESIDE)
        store_columns(b, largest, place, plane, live, j, width, BESIDE)
        tl.store(exponent[:, None], exponent_of(largest).to(tl.int8), mask=live[:, None])
        source, place, exponent = source + width, place + width * 64, exponent + 64


@device
def store_in_pages(
    xk: Tensor, xv: Tensor, wk: Tensor, wv: Tensor, ck: Tensor, sk: Tensor, cv: Tensor, sv: Tensor,
    places: Tensor, axes: Tensor, faults: Tensor, r: Tensor, live: Tensor, position: Tensor,
    h: Tensor, k_pairs: Tensor, v_pairs: Tensor, k_over_n: Tensor, v_over_n: Tensor, k_eps: Tensor,
    v_eps: Tensor, page: Tensor, t: Tensor, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_WAY: tl.constexpr, V_WAY: tl.constexpr, AXES: tl.constexpr, RB: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, REST: tl.constexpr, BESIDE: tl.constexpr,
    EACH: tl.constexpr,
) -> None:  # fmt: skip
    """Heads h … of keys, then of values, to places t of pages."""
    numbers = 2 * G * 64 * (DK + DV)
    if h < G:
        store_heads(
            xk, wk, ck, sk, places, axes, faults, r, live, position, h, k_pairs, k_over_n, k_eps,
            page + (h * 64 + t) * DK, 64 * DK, G * 64 * DK, page + numbers + h * 64 + t, 64, DK,
            G, DK, K_WAY, AXES, RB, KP, False, BESIDE, EACH,
        )  # fmt: skip
    else:
        n = h - G
        place, exponent = page + 2 * G * 64 * DK + n * DV * 64 + t, page + numbers + h * 64 + t
        if V_WAY:
            store_heads(
                xv, wv, cv, sv, places, axes, faults, r, live, position, n, v_pairs, v_over_n,
                v_eps, place, DV * 64, G * 64 * DV, exponent, 64, DV, G, DV, V_WAY, AXES, RB, VP,
                True, BESIDE, EACH,
            )  # fmt: skip
        else:
            store_values(
                xv, faults, r, live, n, place, G * 64 * DV, exponent, G, DV, VP // 2, REST, BESIDE,
                EACH,
            )  # fmt: skip


@kernel
def head_rows(
    xq: Tensor, xk: Tensor, xv: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, cq: Tensor, sq: Tensor,
    ck: Tensor, sk: Tensor, cv: Tensor, sv: Tensor, places: Tensor, axes: Tensor,
    positions: Tensor, owners: Tensor, table: Tensor, high: Tensor, exponent: Tensor,
    faults: Tensor, R: Tensor, q_pairs: Tensor, k_pairs: Tensor, v_pairs: Tensor, padded: Tensor,
    plane: Tensor, pages: Tensor, slot: Tensor,
    k_over_n: Tensor, v_over_n: Tensor, q_eps: Tensor, k_eps: Tensor, v_eps: Tensor,
    H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, Q_WAY: tl.constexpr,
    K_WAY: tl.constexpr, V_WAY: tl.constexpr, AXES: tl.constexpr, RB: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, REST: tl.constexpr, EACH: tl.constexpr,
) -> None:  # fmt: skip
    """EACH heads of RB rows: of the H queries to planes [R, H, padded], of G keys or values to
    pages, in which columns of values are rows of their planes. `plane` is where low planes begin.

    Where rows go is read before the launches that make them have ended. Values' columns come as
    VP / 2 and REST more.
    """
    h, first = tl.program_id(0) * EACH, tl.program_id(1) * RB
    r = first + tl.arange(0, RB)
    live = r < R
    position = tl.load(positions + r, mask=live, other=0)
    if h < H:
        at = r.to(tl.int64) * H + h
        store_heads(
            xq, wq, cq, sq, places, axes, faults, r, live, position, h, q_pairs, k_over_n, q_eps,
            high + at * padded, padded, plane, exponent + at, 1, padded, H, DK, Q_WAY, AXES, RB,
            KP, False, False, EACH,
        )  # fmt: skip
    elif G > 0:
        sequence = tl.load(owners + r, mask=live, other=0)
        lead, owner = tl.load(positions + first), tl.load(owners + first)
        beside = lead * 0
        if RB > 1:
            follow = live & (position - lead == tl.arange(0, RB)) & (sequence == owner)
            beside = tl.min(follow.to(tl.int32), 0) * (lead % RB == 0).to(tl.int32)
        if beside > 0:  # all rows go to one page, side by side
            page, t = page_of(table, owner, pages, lead // 64, slot), lead % 64 // RB * RB
            store_in_pages(
                xk, xv, wk, wv, ck, sk, cv, sv, places, axes, faults, r, live, position, h - H,
                k_pairs, v_pairs, k_over_n, v_over_n, k_eps, v_eps, page, t + tl.arange(0, RB), G,
                DK, DV, K_WAY, V_WAY, AXES, RB, KP, VP, REST, True, EACH,
            )  # fmt: skip
        else:
            at = sequence.to(tl.int64) * pages + position // 64
            address = tl.load(table + at, mask=live, other=0)
            store_in_pages(
                xk, xv, wk, wv, ck, sk, cv, sv, places, axes, faults, r, live, position, h - H,
                k_pairs, v_pairs, k_over_n, v_over_n, k_eps, v_eps, slot_of(address, slot),
                position % 64, G, DK, DV, K_WAY, V_WAY, AXES, RB, KP, VP, REST, False, EACH,
            )  # fmt: skip
