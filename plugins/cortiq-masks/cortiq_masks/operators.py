"""`KeepLargest`: of each row the neurons, or groups of them, with the largest scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.domains import Count, Relation
from cortiq.ir.op import Op, Type, expect
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.sums import canonical_sum


@dataclass(frozen=True)
class KeepLargest(Op):
    """Set to +0 what of a row belongs to groups of small scores: two f32[width] → f32[width].

    The first input is the row, the second the scores' source s. A group's score is the canonical
    sum of s² over it, and |s| where every neuron is a group. Groups stay whose score is not below
    the `keep`-th largest: more than `keep` where scores are equal.

    Attributes
    ----------
    keep : groups that stay.
    edges : where each group begins, ascending; what lies before the first always stays. None at
        all makes a group of every neuron.
    closed : groups that never stay, and do not count.
    """

    width: Count
    keep: Count
    edges: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()
    relations = (
        Relation(
            ("edges", "width"), "groups begin in ascending order, inside the row",
            lambda op: all(a < b for a, b in zip((-1, *op.edges), (*op.edges, op.width),
                                                 strict=True)),
        ),
        Relation(
            ("closed", "edges"), "closed groups are among those there are",
            lambda op: all(0 <= one < len(op.edges) for one in op.closed),
        ),
    )  # fmt: skip

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require two rows of the width."""
        row, scores = inputs
        wanted = Type((self.width,))
        expect(row == scores == wanted, f"{self.kind} takes two {wanted}, got {row} and {scores}")
        return (row,)


def keep_largest_rows(call: Any, rows: Floats, source: Floats) -> Floats:
    """Compute `KeepLargest` as the reference's kernel."""
    return keep_on_host(call.op, rows, source)


def keep_on_host(op: KeepLargest, rows: Floats, source: Floats) -> Floats:
    """Compute `KeepLargest` by its definition, in NumPy."""
    scores = group_scores(source, op.edges)
    candidates = np.ones(scores.shape[1], np.bool_)
    candidates[list(op.closed)] = False
    count = int(candidates.sum())
    stays = np.broadcast_to(candidates, scores.shape)
    if op.keep < count:
        ordered = np.sort(scores[:, candidates], axis=1)
        stays = stays & (scores >= ordered[:, [count - op.keep]])
    if op.edges:
        sizes = np.diff((*op.edges, op.width))
        first = np.ones((len(rows), op.edges[0]), np.bool_)
        stays = np.concatenate([first, np.repeat(stays, sizes, axis=1)], axis=1)
    return np.where(stays, rows, F32(0))


def group_scores(source: Floats, edges: tuple[int, ...]) -> Floats:
    """Return the score of each group of rows, float32 [rows, groups]."""
    if not edges:
        return np.abs(source)
    squares, ends = source * source, (*edges[1:], source.shape[1])
    groups = zip(edges, ends, strict=True)
    return np.stack([canonical_sum(squares[:, a:b]) for a, b in groups], axis=1)
