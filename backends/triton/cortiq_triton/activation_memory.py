"""Memory of a batch while it is computed, and how many rows it may have for that."""

from __future__ import annotations

from math import prod

from cortiq_triton.plan import Plan

MOST_ROWS = 2048
"""Rows with which products of a large GPU run at their full rate."""
WHOLE_ROWS = 11264
"""Rows of texts or images that are computed whole, by layers too small for their launches: 88 tiles
of 128, by six of 192 columns of a tower's 1,152, are four rounds of an H200's 132 processors.
"""
FEWEST_ROWS = 256
SHARE = 8
"""A batch takes at most this part of the memory that weights have left."""


def value_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a value of one row: floats and ids are words, quantised rows two planes, an exponent
    and a sum of each 16.
    """
    count = prod(shape)
    if dtype != "q16":
        return 4 * count
    return 2 * count + count // 4 + 4 * (count // max(1, shape[-1] if shape else 1))


def row_bytes(plan: Plan) -> int:
    """The most bytes that values of one row take at a time, on the way through a plan."""
    graph = plan.graph
    sizes = {name: value_bytes(kind.dtype, kind.shape) for name, kind in graph.values.items()}
    live, most = set(graph.inputs), 0
    for step, used_up in plan.select(frozenset()):
        live.update(step.node.outputs)
        most = max(most, sum(sizes[name] for name in live))
        live.difference_update(used_up)
    return most


def batch_rows(each: int, free: int, most: int = MOST_ROWS) -> int:
    """Rows of a batch, `most` or fewer, each of so many bytes, where so many are free."""
    rows = most
    while rows > FEWEST_ROWS and rows * each > free // SHARE:
        rows //= 2
    return rows
