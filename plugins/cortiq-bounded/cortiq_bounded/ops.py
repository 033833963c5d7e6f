"""Primitives of this package: their types, weights and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated

from cortiq.domains import Count, Integer, OneOf, Relation, Size, divides
from cortiq.ir.op import Op, Type, expect, expect_last
from cortiq.ir.options import ScoreScale
from cortiq.ir.slots import Recurrent, Slot

Shapes = Mapping[str, tuple[int, ...]]
SLACK = 9
"""Rows that are in the far field at least when a sequence is sealed."""
ROWS_PER_LANDMARK = 8
Landmarks = Annotated[int, Integer(4, 256)]
Rectifier = Annotated[str, OneOf(("aggregate", "fm"))]
"""The part of the far field that is kept from going below zero: sums of rows, or all of it."""


@dataclass(frozen=True)
class NystromAttend(Op):
    """Attention whose far keys are seen through landmarks (`nystrom.step`).

    Inputs: q f32[heads, dim], k f32[kv_heads, dim], v f32[kv_heads, value_dim], the position i32[].
    Output f32[heads, value_dim]. The first `seal` rows see one another exactly. Then the state is
    sealed: from there on a row sees exactly the first `sinks` rows, `exact` rows that were chosen
    at the seal, and the last `window` rows; all others through `landmarks` means of keys and
    queries.

    Attributes
    ----------
    stride : every so manieth query before the seal counts for the landmarks.
    reseal : rows after which landmarks are made anew from the rows that left the window since; 0
        for never. What the far field held before is forgotten then.
    """

    heads: Count
    kv_heads: Count
    dim: Count
    value_dim: Count
    scale: ScoreScale
    seal: Count
    landmarks: Landmarks = 32
    window: Count = 128
    sinks: Size = 4
    exact: Size = 0
    stride: Count = 1
    reseal: Size = 0
    rectifier: Rectifier = "aggregate"
    writes_slots = True
    relations = (
        divides("kv_heads", "heads"),
        Relation(
            ("seal", "window", "sinks", "exact"),
            f"{SLACK} rows are far at the seal, besides sinks, window and exact ones",
            lambda a: a.seal >= a.window + a.sinks + a.exact + SLACK,
        ),
        Relation(
            ("seal", "stride", "landmarks"), "each landmark has a query that counts",
            lambda a: a.traced >= a.used,
        ),
        Relation(
            ("reseal", "landmarks"), "each landmark has a row when they are made anew",
            lambda a: not a.reseal or a.reseal >= a.used,
        ),
    )  # fmt: skip

    @property
    def used(self) -> int:
        """Landmarks that there are: one for eight rows at most."""
        return max(4, min(self.landmarks, self.seal // ROWS_PER_LANDMARK))

    @property
    def traced(self) -> int:
        """Queries before the seal that count for the landmarks."""
        return -(-self.seal // self.stride)

    def input_types(self) -> tuple[Type, ...]:
        """Return the types of q, k, v and the position."""
        return (
            Type((self.heads, self.dim)), Type((self.kv_heads, self.dim)),
            Type((self.kv_heads, self.value_dim)), Type((), "i32"),
        )  # fmt: skip

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one output row a head."""
        wanted = self.input_types()
        expect(inputs == wanted, f"NystromAttend takes {wanted}, got {inputs}")
        return (Type((self.heads, self.value_dim)),)

    def collected_shapes(self) -> Shapes:
        """Return the parts of the state before the seal: all rows, and the queries that count."""
        return {
            "keys": (self.seal, self.kv_heads, self.dim),
            "values": (self.seal, self.kv_heads, self.value_dim),
            "queries": (self.traced, self.heads, self.dim),
        }

    def sealed_shapes(self) -> Shapes:
        """Return the parts after the seal; none depends on the length of the sequence.

        Kept rows are the sinks and then the exact ones; rows of the window lie in a ring;
        landmarks, `middle` and `shift` are frozen; `sums`, `masses` and `peaks` are the far field,
        relative to each landmark's largest score; archived rows left the window since then.
        """
        kv, n, near = self.kv_heads, self.used, self.sinks + self.exact
        shapes = {
            "kept_keys": (near, kv, self.dim), "kept_values": (near, kv, self.value_dim),
            "window_keys": (self.window, kv, self.dim),
            "window_values": (self.window, kv, self.value_dim),
            "landmark_keys": (kv, n, self.dim), "landmark_queries": (self.heads, n, self.dim),
            "middle": (self.heads, n, n), "shift": (self.heads,),
            "sums": (self.heads, n, self.value_dim), "masses": (self.heads, n),
            "peaks": (self.heads, n),
        }  # fmt: skip
        if self.reseal:
            shapes["archive_keys"] = (self.reseal, kv, self.dim)
            shapes["archive_values"] = (self.reseal, kv, self.value_dim)
            shapes["archive_queries"] = (self.reseal, self.heads, self.dim)
        return shapes

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the state: the rows before the seal, and the sealed state in their place."""
        forms = (self.collected_shapes(), self.sealed_shapes())
        return {"state": Recurrent((max(sum(map(prod, shapes.values())) for shapes in forms),))}


@dataclass(frozen=True)
class PhaseFeatures(Op):
    """Cosines and sines of angles (`phase.phase_features`): f32[..., n] → f32[..., 2n]."""

    width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer twice the last axis: cosines, then sines."""
        (x,) = inputs
        expect_last(self, x, self.width)
        return (Type((*x.shape[:-1], 2 * self.width)),)
