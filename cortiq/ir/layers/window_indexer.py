"""The indexer of Qwen's sparse attention: it chooses windows of keys by the mean of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.domains import Count, Relation
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.attention_options import ListedBlocks
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.moments import ones
from cortiq.ir.op import Type, expect, expect_last
from cortiq.ir.ops.key_choice import IndexHeads
from cortiq.ir.options import Constant, Epsilon
from cortiq.ir.slots import KVRows, Ring, Slot
from cortiq.numerics.rope import RopeTable, Sections


@dataclass(frozen=True)
class WindowIndexer(Layer):
    """The windows of keys that a query attends to: f32[width], position → i32[1, top + 1].

    With `sections` two further inputs i32[axes] have the positions on several axes: the row's, and
    those of the row `every` − 1 before, where a window begins.

    The key of a window of `every` rows, of those that are closed, is RMSNorm(Σ pool·Linear(x)) of
    its rows, turned as at the first; its score is the sum over heads of ReLU(q·k), with q =
    RMSNorm(Linear(x)) of the row. A query takes the `top` best, and its own window as far as it is.
    Source: Qwen3.8-Flash-Next. The positive factor of its scores, which changes no choice, is left
    out.

    Attributes
    ----------
    heads, dim : of the indexer's queries. every : rows of a window. top : windows a query takes.
    eps, offset : of the norms of queries and keys. rope, sections : of the first dimensions of
        both.
    The weight `pool` [dim, every] has the factor of each row of a window.
    """

    width: Count
    heads: IndexHeads
    dim: Count
    every: Count
    top: Count
    eps: Epsilon
    offset: Constant = 0.0
    rope: RopeTable | None = None
    sections: Sections | None = None
    writes_slots = True
    relations = (
        Relation(
            ("rope", "dim"), "dim holds the rotary dimensions",
            lambda a: a.rope is None or a.rope.dim <= a.dim,
        ),
        Relation(
            ("sections", "rope"), "the sections have as many pairs as the table",
            lambda a: a.sections is None or (a.rope and 2 * sum(a.sections.pairs) == a.rope.dim),
        ),
    )  # fmt: skip

    @property
    def listed(self) -> ListedBlocks:
        """The windows as blocks of keys, which attention is given."""
        return ListedBlocks(self.every, self.top + 1)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the list of windows."""
        x, position, *axes = inputs
        expect_last(self, x, self.width)
        expect(position == Type((), "i32"), f"WindowIndexer takes a position, got {position}")
        wanted = [Type((self.sections.count,), "i32")] * 2 if self.sections else []
        expect(axes == wanted, f"WindowIndexer takes {wanted} besides, got {axes}")
        return (self.listed.type,)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, norms, and the factors of a window's rows."""
        return {
            "index_q": (self.heads * self.dim, self.width), "index_k": (self.dim, self.width),
            "index_q_norm": (self.dim,), "index_k_norm": (self.dim,),
            "index_pool": (self.dim, self.every),
        }  # fmt: skip

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare one key a position, and the rows of an open window."""
        return {"index": KVRows(1, self.dim, 0), "index_ring": Ring(self.dim, self.every - 1)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, CausalConv, Reshape, RMSNorm, Rope, Quantise, StoreKV, ChooseKeys,
        WindowBlocks.
        """
        x, position, *axes = inputs
        own, begins = axes or (position, position)
        y = linear(scope, x, "index_k", self.width, self.dim)
        pool, slots = ops.CausalConv(self.dim, self.every), {"ring": "index_ring"}
        y = scope.add(pool, y, name="pooled", weights={"weight": "index_pool"}, slots=slots)
        first = self.rope
        if first and not axes:
            first = replace(first, lag=self.every - 1)  # where a window begins
        key = self._coded(scope, y, begins, "index_k", 1, first)
        slots = {"kv": "index"}
        scope.add_node(ops.StoreKV(1, self.dim, 0), key, name="index_store", slots=slots)
        y = linear(scope, x, "index_q", self.width, self.heads * self.dim)
        query = self._coded(scope, y, own, "index_q", self.heads, self.rope)
        weights = ones(scope, y, self.heads, "heads")
        choose = ops.ChooseKeys(self.heads, self.dim, self.top, self.every)
        keys = scope.add(choose, query, position, weights, name="keys", slots=slots)
        return scope.add(ops.WindowBlocks(self.every), keys, position, name="windows")

    def _coded(
        self,
        scope: Scope,
        y: Value,
        position: Value,
        role: str,
        heads: int,
        table: RopeTable | None,
    ) -> Value:
        """Return heads after norm and rotation, quantised."""
        y = scope.add(ops.Reshape((heads, self.dim)), y, name=f"{role}.heads")
        norm = ops.RMSNorm(self.dim, self.eps, self.offset)
        y = scope.add(norm, y, name=f"{role}.norm", weights={"weight": f"{role}_norm"})
        if table:
            rope = ops.Rope(table, sections=self.sections)
            y = scope.add(rope, y, position, name=f"{role}.rope")
        return scope.add(ops.Quantise(), y, name=f"{role}.quantised")
