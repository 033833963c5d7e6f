"""Float sums in a written order: terms of a last axis, taken apart by splitting it."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, device


@device
def eight_in_order(y: Tensor, terms: Tensor, SIZE: tl.constexpr) -> Tensor:
    """((y + t₀) + …) + t₇ of y [SIZE] and terms [SIZE, 8]."""
    even, odd = tl.split(tl.reshape(terms, (SIZE, 4, 2)))
    t04, t26 = tl.split(tl.reshape(even, (SIZE, 2, 2)))
    t15, t37 = tl.split(tl.reshape(odd, (SIZE, 2, 2)))
    t0, t4 = tl.split(t04)
    t2, t6 = tl.split(t26)
    t1, t5 = tl.split(t15)
    t3, t7 = tl.split(t37)
    return (((((((y + t0) + t1) + t2) + t3) + t4) + t5) + t6) + t7


@device
def add_in_order(y: Tensor, terms: Tensor, COUNT: tl.constexpr, SIZE: tl.constexpr) -> Tensor:
    """(((y + t₀) + t₁) + …) of y [SIZE] and terms [SIZE, COUNT], COUNT 1, 2, 4 or 8."""
    if COUNT == 1:
        y = y + tl.reshape(terms, (SIZE,))
    elif COUNT == 2:
        t0, t1 = tl.split(terms)
        y = (y + t0) + t1
    elif COUNT == 4:
        even, odd = tl.split(tl.reshape(terms, (SIZE, 2, 2)))
        t0, t2 = tl.split(even)
        t1, t3 = tl.split(odd)
        y = (((y + t0) + t1) + t2) + t3
    else:
        y = eight_in_order(y, terms, SIZE)
    return y


@device
def runs_of(terms: Tensor, SIZE: tl.constexpr) -> Tensor:
    """Runs of eight terms [SIZE, 8], each from +0 on: [SIZE]."""
    return add_in_order(tl.full((SIZE,), 0.0, tl.float32), terms, 8, SIZE)


@device
def many_in_order(y: Tensor, terms: Tensor, COUNT: tl.constexpr, SIZE: tl.constexpr) -> Tensor:
    """Add terms [SIZE, COUNT] in order, COUNT any power of two up to 64."""
    if COUNT <= 8:
        y = add_in_order(y, terms, COUNT, SIZE)
    else:
        halves = tl.permute(tl.reshape(terms, (SIZE, 2, COUNT // 2)), (0, 2, 1))
        first, second = tl.split(halves)
        y = many_in_order(y, first, COUNT // 2, SIZE)
        y = many_in_order(y, second, COUNT // 2, SIZE)
    return y
