"""The lightning indexer of DeepSeek sparse attention: it chooses keys one by one, or in pools."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation, Size
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.attention_options import scaled_by_position
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.latent import compressed_query
from cortiq.ir.op import Type, expect, expect_last
from cortiq.ir.ops.key_choice import IndexHeads
from cortiq.ir.options import Epsilon, Pairing
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.compression import MOST_ROWS
from cortiq.numerics.rope import RopeTable


@dataclass(frozen=True)
class KeyIndexer(Layer):
    """The keys that a query attends to: f32[width], position → i32[1, top]; of pools, [1, top + 1].

    Queries of some heads, from the latent of the attention's queries, against one key a position;
    a key's score is Σ over heads of weight·ReLU(q·k), the weights being a projection of the row.
    Source: DeepSeek-V3.2, section 2.1. Left out, because they change no choice: the positive
    factors of scores and weights, and the Hadamard matrix that queries and keys are multiplied by
    before they are rounded to FP8 (it is orthogonal).

    With `every` above 1 a key stands for a pool of so many rows, those that are closed: the sum of
    their keys by the softmax of their gates, column by column (`Compress`). A query takes the `top`
    best pools, and its own as far as it is: blocks of `every` keys. Source: GLM-5.3-Flash.

    Attributes
    ----------
    query_latent : width that the attention's queries are compressed to; 0 for queries of the row
        itself, after a LayerNorm.
    heads, dim : of the indexer's queries. top : keys, or pools, a query takes.
    eps : of the norm of the latent, or of the row. key_eps : of the LayerNorm of keys.
    rope : of the first dimensions of queries and keys. biased : q_a has a bias.
    turns_last : it is of the last dimensions (HunYuan 4).
    scalable : queries grow with their position, see `scaled_by_position` (Mistral Large 4).
    every : rows of a pool.
    """

    width: Count
    query_latent: Size
    heads: IndexHeads
    dim: Count
    top: Count
    eps: Epsilon
    key_eps: Epsilon
    rope: RopeTable | None = None
    pairing: Pairing = "half"
    biased: bool = False
    turns_last: bool = False
    scalable: bool = False
    every: Count = 1
    writes_slots = True
    relations = (
        Relation(
            ("rope", "dim"), "dim holds the rotary dimensions",
            lambda a: a.rope is None or a.rope.dim <= a.dim,
        ),
        Relation(
            ("every", "rope"), "keys that are pooled are not rotated",
            lambda a: a.every == 1 or a.rope is None,
        ),
        Relation(
            ("every",), f"a pool has at most {MOST_ROWS} rows", lambda a: a.every <= MOST_ROWS,
        ),
    )  # fmt: skip

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the list of keys."""
        x, position = inputs
        expect_last(self, x, self.width)
        expect(position == Type((), "i32"), f"KeyIndexer takes a position, got {position}")
        return (Type((1, self.top + (self.every > 1)), "i32"),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the query's compression, which the attention has too, projections and norm."""
        shapes: dict[str, tuple[int, ...]] = {
            "q_a": (self.query_latent, self.width),
            "q_a_norm": (self.query_latent,),
        }
        if not self.query_latent:
            shapes = {"index_q_norm": (self.width,), "index_q_norm_bias": (self.width,)}
        shapes |= {
            "index_q": (self.heads * self.dim, self.query_latent or self.width),
            "index_k": (self.dim, self.width),
            "index_k_norm": (self.dim,),
            "index_k_norm_bias": (self.dim,),
            "index_weights": (self.heads, self.width),
        }
        if self.scalable:
            shapes |= {f"index_q_{role}": (self.heads,) for role in ("growth", "start")}
        if self.every > 1:
            shapes["index_gates"] = (self.dim, self.width)
            shapes["index_bias"] = (self.every, self.dim)
        biased = self.biased and self.query_latent
        return shapes | ({"q_a_bias": (self.query_latent,)} if biased else {})

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare one key a position, and what those of pools are made from."""
        slots: dict[str, Slot] = {"index": KVRows(1, self.dim, 0)}
        if self.every > 1:
            slots["index_ring"] = self._pool.slot_kinds()["ring"]
        return slots

    @property
    def _pool(self) -> ops.Compress:
        return ops.Compress(self.dim, self.every)

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, RMSNorm, LayerNorm, Reshape, Rope, Quantise, StoreKV, ChooseKeys; of pools
        Compress and WindowBlocks too.
        """
        x, position = inputs
        k = linear(scope, x, "index_k", self.width, self.dim)
        roles = {"weight": "index_k_norm", "bias": "index_k_norm_bias"}
        norm = ops.LayerNorm(self.dim, self.key_eps)
        k = scope.add(norm, k, name="index_k.norm", weights=roles)
        if self.every > 1:
            k = self._pooled(scope, x, k, position)
        slots = {"kv": "index"}
        k = self._coded(scope, k, position, "index_k", 1)
        scope.add_node(ops.StoreKV(1, self.dim, 0), k, name="index_store", slots=slots)
        inner = self.query_latent or self.width
        if self.query_latent:
            q = compressed_query(scope, x, self.width, inner, self.eps, self.biased)
        else:
            roles = {"weight": "index_q_norm", "bias": "index_q_norm_bias"}
            q = scope.add(ops.LayerNorm(inner, self.eps), x, name="index_q.norm", weights=roles)
        q = linear(scope, q, "index_q", inner, self.heads * self.dim)
        q = self._coded(scope, q, position, "index_q", self.heads)
        weights = linear(scope, x, "index_weights", self.width, self.heads)
        op = ops.ChooseKeys(self.heads, self.dim, self.top, self.every)
        keys = scope.add(op, q, position, weights, name="keys", slots=slots)
        if self.every == 1:
            return keys
        return scope.add(ops.WindowBlocks(self.every), keys, position, name="pools")

    def _pooled(self, scope: Scope, x: Value, k: Value, position: Value) -> Value:
        """Return the key of the pool that the row closes."""
        gates = linear(scope, x, "index_gates", self.width, self.dim)
        bias, ring = {"bias": "index_bias"}, {"ring": "index_ring"}
        name = "index_k.pooled"
        return scope.add(self._pool, k, position, gates, name=name, weights=bias, slots=ring)

    def _coded(self, scope: Scope, y: Value, position: Value, role: str, heads: int) -> Value:
        """Return heads, scaled, rotated and quantised."""
        y = scope.add(ops.Reshape((heads, self.dim)), y, name=f"{role}.heads")
        if self.scalable and role == "index_q":
            y = scaled_by_position(scope, y, position, role)
        if self.rope:
            y = self._turned(scope, y, position, role, self.rope)
        return scope.add(ops.Quantise(), y, name=f"{role}.quantised")

    def _turned(
        self, scope: Scope, y: Value, position: Value, role: str, table: RopeTable
    ) -> Value:
        """Write Rope, of the last dimensions between Slice ×2 and Concat."""
        rope, still = ops.Rope(table, self.pairing), self.dim - table.dim
        if not (self.turns_last and still):
            return scope.add(rope, y, position, name=f"{role}.rope")
        first = scope.add(ops.Slice(0, still), y, name=f"{role}.still")
        last = scope.add(ops.Slice(still, self.dim), y, name=f"{role}.turned")
        last = scope.add(rope, last, position, name=f"{role}.rope")
        return scope.add(ops.Concat(), first, last, name=f"{role}.placed")
