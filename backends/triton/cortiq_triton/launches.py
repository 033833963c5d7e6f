"""Kernels of several primitives, as steps call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cortiq_triton import elementwise, fused, products, qkv_prologue
from cortiq_triton.attend import attended_rows
from cortiq_triton.call import LaunchCall
from cortiq_triton.low_rank import MOST, FactorBanks, Overlaid, table_of, with_low_rank
from cortiq_triton.low_rank_rows import AHEAD, BESIDE, WAITS
from cortiq_triton.products import PLAIN, Stack
from cortiq_triton.rows import Rows

Kernel = Callable[..., Any]


def norm(kind: int, eps: float, keep: bool) -> Kernel:
    """RMS or layer norm and the quantised row; the normed row too if it is kept."""

    def kernel(call: LaunchCall, x: torch.Tensor) -> Any:
        out, rows = fused.normed_rows(kind, x, call.weights, eps, call.faults, keep)
        return (out, rows) if keep else rows

    return kernel


def gate(function: str) -> Kernel:
    """Activation, times what it gates if it does, quantised."""

    def kernel(call: LaunchCall, gate: torch.Tensor, up: torch.Tensor | None = None) -> Rows:
        return fused.gated_rows(elementwise.ACTIVATIONS[function], gate, up, call.faults)

    return kernel


def gate_alone(function: str) -> Kernel:
    """Activation, times what it gates."""

    def kernel(call: LaunchCall, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return fused.gated_parts(elementwise.ACTIVATIONS[function], gate, up, call.faults)[0]

    return kernel


def heads(ways: dict[str, qkv_prologue.Way]) -> Kernel:
    """Heads on their way into attention."""
    names = tuple(ways)

    def kernel(call: LaunchCall, *given: torch.Tensor) -> Rows | tuple[()]:
        heads, places = given[: len(names)], given[len(names) :]
        ours = dict(zip(names, heads, strict=True))
        return qkv_prologue.into_attention(call, ways, ours, *places)

    return kernel


def attention(op: Any) -> Kernel:
    """Attention, its heads side by side, quantised."""

    def kernel(call: LaunchCall, *given: Any) -> Rows:
        return attended_rows(call, op, *given)

    return kernel


def product(bias: torch.Tensor | None) -> Kernel:
    """A product with what is added to it."""

    def kernel(call: LaunchCall, x: Rows, *residual: torch.Tensor) -> torch.Tensor:
        weight, lead, count, each = _sizes(call, x)
        given = residual[0].reshape(count, -1) if residual else None
        how = Stack(PLAIN, weight.height, group=each, bias=bias, residual=given)
        return products.product(weight, x, count, call.faults, how).view(*lead, -1)

    return kernel


def products_of(heights: tuple[int, ...], bias: torch.Tensor | None = None) -> Kernel:
    """Products of one row with matrices of these heights, which are rows of one weight, and the
    bias of all of them.
    """

    def kernel(call: LaunchCall, x: Rows) -> Any:
        weight, lead, count, each = _sizes(call, x)
        how = Stack(PLAIN, weight.height, group=each, bias=bias, parts=heights)
        flat = products.product(weight, x, count, call.faults, how).view(-1)
        cut = flat.split([count * height for height in heights])
        return tuple(part.view(*lead, height) for part, height in zip(cut, heights, strict=True))

    return kernel


def low_rank(parts: Sequence[FactorBanks], members: int, in_place: bool, late: bool) -> Kernel:
    """Products of one row, as one step gave them, with what overlays add, and of one the residual.

    The call's weight, if it has any, is that of a product of the same row, launched just before.
    in_place : nobody else reads the products. late : a launch may pick the numbers of overlays.
    """
    groups = [parts[first : first + MOST] for first in range(0, len(parts), MOST)]
    tables = [table_of(group, members) for group in groups]

    def kernel(call: LaunchCall, x: Rows, index: torch.Tensor, *base: torch.Tensor) -> Any:
        rest, found, known = list(base), [], call.rows.groups(index)
        before = call.weights.get("weight")
        ready = before is not None and products.lets_next(before, len(index))
        start = WAITS if late else BESIDE if ready else AHEAD
        residual = rest.pop() if len(rest) > len(parts) else None
        for table, group in zip(tables, groups, strict=True):
            mine, rest = rest[: len(group)], rest[len(group) :]
            given = Overlaid(x, index, mine, residual, in_place, known, start)
            found += with_low_rank(table, group, members, given, call.faults)
            start = max(start, AHEAD)
        return tuple(found) if len(found) > 1 else found[0]

    return kernel


def _sizes(call: LaunchCall, x: Rows) -> tuple[Any, tuple[int, ...], int, int]:
    """The weight, leading axes of the rows, how many rows these are, and how many a batch's row."""
    lead = tuple(x.e.shape)
    return call.weights["weight"], lead, x.e.numel(), max(1, x.e.numel() // max(1, lead[0]))
