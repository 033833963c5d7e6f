"""Attention to a window of rows, and beyond it to entries that stand for several rows each.

Source: DeepSeek-V4, section 2.3: compressed sparse attention, heavily compressed attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.domains import Count, Relation
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear, rows_for
from cortiq.ir.layers.latent import compressed_query
from cortiq.ir.op import Described, Type, expect, expect_last
from cortiq.ir.ops.key_choice import IndexHeads
from cortiq.ir.options import Epsilon, ScoreScale
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.compression import Rate
from cortiq.numerics.rope import RopeTable


@dataclass(frozen=True)
class EntryIndexer(Described):
    """Scores entries for attention, as `KeyIndexer` does keys: queries of `heads` heads of `dim`.

    The heads' keys are compressed from rows as entries are.
    """

    heads: IndexHeads
    dim: Count


@dataclass(frozen=True)
class Entries(Described):
    """Entries beyond the window: one for every `rate` rows.

    Attributes
    ----------
    top : entries a query sees: those that the indexer scores best, without one the last ones.
    overlap : an entry is made from its own rows and those of the one before.
    """

    rate: Rate
    top: Count
    overlap: bool = False
    indexer: EntryIndexer | None = None


@dataclass(frozen=True)
class CompressedAttention(Layer):
    """Multi-query attention whose key is its value: f32[width], position → f32[width].

    q = RMSNorm(Linear(RMSNorm(Linear(x)))) a head, k = RMSNorm(Linear(x)); the last dimensions of
    both are rotated, and those of the output back; softmax over the last `window` rows, a sink a
    head, and the entries; Linear of each group of heads, and of all groups.

    Attributes
    ----------
    dim : of a head. query_latent : width that queries are compressed to.
    groups, group_dim : groups of heads, and the width each is projected to.
    rope : of the last `rope.dim` elements of queries, keys, entries and the indexer's.
    """

    width: Count
    heads: Count
    dim: Count
    query_latent: Count
    groups: Count
    group_dim: Count
    window: Count
    eps: Epsilon
    scale: ScoreScale
    rope: RopeTable
    entries: Entries | None = None
    writes_slots = True
    relations = (
        Relation(
            ("heads", "groups"), "groups have as many heads each",
            lambda a: a.heads % a.groups == 0,
        ),
        Relation(
            ("rope", "dim", "entries"), "heads hold the rotary dimensions",
            lambda a: a.rope.dim <= min(a.dim, a.indexer.dim if a.indexer else a.dim),
        ),
    )  # fmt: skip

    @property
    def indexer(self) -> EntryIndexer | None:
        """The indexer that chooses entries, if one does."""
        return self.entries.indexer if self.entries else None

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        x, position = inputs
        expect_last(self, x, self.width)
        expect(position == Type((), "i32"), f"CompressedAttention takes a position: {position}")
        return (x,)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, norms, sinks, and those of the entries and their indexer."""
        each = self.heads // self.groups * self.dim
        shapes: dict[str, tuple[int, ...]] = {
            "q_a": (self.query_latent, self.width), "q_a_norm": (self.query_latent,),
            "q": (self.heads * self.dim, self.query_latent), "kv": (self.dim, self.width),
            "kv_norm": (self.dim,), "sinks": (self.heads,),
            "o_a": (self.groups, self.group_dim, each),
            "o": (self.width, self.groups * self.group_dim),
        }  # fmt: skip
        if self.entries:
            shapes |= self._entry_shapes("far", self.dim)
        if index := self.indexer:
            shapes |= self._entry_shapes("index", index.dim)
            shapes["index_q"] = (index.heads * index.dim, self.query_latent)
            shapes["index_weights"] = (index.heads, self.width)
        return shapes

    def _entry_shapes(self, role: str, dim: int) -> dict[str, tuple[int, ...]]:
        wide = self._compress(dim).parts * dim
        return {
            f"{role}_rows": (wide, self.width), f"{role}_gates": (wide, self.width),
            f"{role}_bias": (self._compress(dim).rate, wide), f"{role}_norm": (dim,),
        }  # fmt: skip

    def _compress(self, dim: int) -> ops.Compress:
        assert self.entries is not None
        return ops.Compress(dim, self.entries.rate, self.entries.overlap)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare rows, entries, keys of the indexer, and what entries are made from."""
        slots: dict[str, Slot] = {"kv": KVRows(1, self.dim, self.dim)}
        if self.entries:
            slots["far"] = KVRows(1, self.dim, self.dim)
            slots["far_ring"] = self._compress(self.dim).slot_kinds()["ring"]
        if index := self.indexer:
            slots["index"] = KVRows(1, index.dim, 0)
            slots["index_ring"] = self._compress(index.dim).slot_kinds()["ring"]
        return slots

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear, RMSNorm, Slice, Rope, Concat, Quantise, StoreKV, Attend; with entries Compress,
        ListKeys or ChooseKeys, Attend, Softmax, ScaleRows, Add; HeadMatMul, Linear.
        """
        x, position = inputs
        latent = compressed_query(scope, x, self.width, self.query_latent, self.eps, False)
        q = linear(scope, latent, "q", self.query_latent, self.heads * self.dim)
        q = scope.add(ops.Reshape((self.heads, self.dim)), q, name="q.heads")
        q = scope.add(ops.RMSNorm(self.dim, self.eps, weighted=False), q, name="q.norm")
        q = self._turned(scope, q, position, "q", self.rope)
        q = scope.add(ops.Quantise(), q, name="q.quantised")
        k = linear(scope, x, "kv", self.width, self.dim)
        self._store(scope, k, position, "kv", self.dim, self.rope)
        near = ops.Attend(
            self.heads, 1, self.dim, self.dim, self.scale, self.window, sinks=True,
            mass=self.entries is not None,
        )  # fmt: skip
        found = scope.add_node(
            near, q, position, name="attend", weights={"sinks": "sinks"}, slots={"kv": "kv"}
        )
        y = found[0]
        if self.entries:
            far = self._far(scope, x, latent, q, position, self.entries)
            y = self._merged(scope, found, far)
        return self._projected(scope, y, position)

    def _turned(
        self, scope: Scope, y: Value, position: Value, name: str, table: RopeTable
    ) -> Value:
        """Return heads whose last elements are rotated."""
        dim = y.type.shape[-1]
        still = dim - table.dim
        part = y if not still else scope.add(ops.Slice(still, dim), y, name=f"{name}.rotary")
        part = scope.add(ops.Rope(table, "interleaved"), part, position, name=f"{name}.rope")
        if not still:
            return part
        rest = scope.add(ops.Slice(0, still), y, name=f"{name}.still")
        return scope.add(ops.Concat(), rest, part, name=f"{name}.turned")

    def _store(
        self, scope: Scope, y: Value, position: Value, role: str, dim: int, table: RopeTable
    ) -> None:
        """Store a row after norm and rotation: keys, which are the values too but for an index."""
        norm = ops.RMSNorm(dim, self.eps)
        y = scope.add(norm, y, name=f"{role}.norm", weights={"weight": f"{role}_norm"})
        y = scope.add(ops.Reshape((1, dim)), y, name=f"{role}.head")
        y = self._turned(scope, y, position, role, table)
        y = scope.add(ops.Quantise(), y, name=f"{role}.quantised")
        values = 0 if role == "index" else dim
        store, rows = ops.StoreKV(1, dim, values), [y, y] if values else [y]
        scope.add_node(store, *rows, name=f"{role}.store", slots={"kv": role})

    def _compressed(self, scope: Scope, x: Value, position: Value, role: str, dim: int) -> None:
        """Store the entries of a role."""
        op = self._compress(dim)
        wide = op.parts * dim
        rows, gates = (
            linear(scope, x, f"{role}_{what}", self.width, wide) for what in ("rows", "gates")
        )
        y = scope.add(
            op, rows, position, gates, name=f"{role}.entry", weights={"bias": f"{role}_bias"},
            slots={"ring": f"{role}_ring"},
        )  # fmt: skip
        first = replace(self.rope, lag=op.rate - 1)  # an entry stands where its rows begin
        self._store(scope, y, position, role, dim, first)

    def _far(
        self, scope: Scope, x: Value, latent: Value, q: Value, position: Value, how: Entries
    ) -> tuple[Value, ...]:
        """Return the attention to entries, and its mass."""
        self._compressed(scope, x, position, "far", self.dim)
        if how.indexer:
            keys = self._chosen(scope, x, latent, position, how, how.indexer)
        else:
            keys = scope.add(ops.ListKeys(how.rate, how.top), position, name="keys")
        op = ops.Attend(self.heads, 1, self.dim, self.dim, self.scale, block=1, mass=True)
        return scope.add_node(op, q, position, keys, name="attend_far", slots={"kv": "far"})

    def _chosen(
        self, scope: Scope, x: Value, latent: Value, position: Value, how: Entries, by: EntryIndexer
    ) -> Value:
        """Return the entries that score best."""
        self._compressed(scope, x, position, "index", by.dim)
        q = linear(scope, latent, "index_q", self.query_latent, by.heads * by.dim)
        q = scope.add(ops.Reshape((by.heads, by.dim)), q, name="index_q.heads")
        q = self._turned(scope, q, position, "index_q", self.rope)
        q = scope.add(ops.Quantise(), q, name="index_q.quantised")
        weights = linear(scope, x, "index_weights", self.width, by.heads)
        op = ops.ChooseKeys(by.heads, by.dim, how.top, how.rate)
        return scope.add(op, q, position, weights, name="keys", slots={"kv": "index"})

    def _merged(self, scope: Scope, near: tuple[Value, ...], far: tuple[Value, ...]) -> Value:
        """Merge two attentions by their shares of the mass."""
        masses = scope.add(ops.Concat(), near[1], far[1], name="masses")
        shares = scope.add(ops.Softmax(2), masses, name="shares")
        parts = []
        for i, (y, name) in enumerate(((near[0], "near"), (far[0], "far"))):
            share = scope.add(ops.Slice(i, i + 1), shares, name=f"{name}.share")
            parts.append(scope.add(ops.ScaleRows(), y, share, name=f"{name}.part"))
        return scope.add(ops.Add(), *parts, name="attended")

    def _projected(self, scope: Scope, y: Value, position: Value) -> Value:
        """Turn the heads' outputs back and project them, group by group and together."""
        y = self._turned(scope, y, position, "out", replace(self.rope, inverse=True))
        each, merged = self.heads // self.groups * self.dim, self.groups * self.group_dim
        y = scope.add(ops.Reshape((self.groups, each)), y, name="groups")
        rows = rows_for(scope, "o_a", y, "o_a")
        matmul = ops.HeadMatMul(self.groups, each, self.group_dim)
        y = scope.add(matmul, rows, name="o_a", weights={"weight": "o_a"})
        y = scope.add(ops.Reshape((merged,)), y, name="merged")
        return linear(scope, y, "o", merged, self.width)
