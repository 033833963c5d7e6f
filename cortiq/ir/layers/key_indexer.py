"""The lightning indexer of DeepSeek sparse attention: it chooses keys one by one."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.latent import compressed_query
from cortiq.ir.op import Type, expect, expect_last
from cortiq.ir.ops.key_choice import IndexHeads
from cortiq.ir.options import Epsilon, Pairing
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.rope import RopeTable


@dataclass(frozen=True)
class KeyIndexer(Layer):
    """The keys that a query attends to: f32[width], position → i32[1, top].

    Queries of some heads, from the latent of the attention's queries, against one key a position;
    a key's score is Σ over heads of weight·ReLU(q·k), the weights being a projection of the row.
    Source: DeepSeek-V3.2, section 2.1. Left out, because they change no choice: the positive
    factors of scores and weights, and the Hadamard matrix that queries and keys are multiplied by
    before they are rounded to FP8 (it is orthogonal).

    Attributes
    ----------
    query_latent : width that the attention's queries are compressed to.
    heads, dim : of the indexer's queries. top : keys a query takes.
    eps : of the norm of the latent. key_eps : of the LayerNorm of keys.
    rope : of the first dimensions of queries and keys. biased : q_a has a bias.
    """

    width: Count
    query_latent: Count
    heads: IndexHeads
    dim: Count
    top: Count
    eps: Epsilon
    key_eps: Epsilon
    rope: RopeTable | None = None
    pairing: Pairing = "half"
    biased: bool = False
    writes_slots = True
    relations = (
        Relation(
            ("rope", "dim"), "dim holds the rotary dimensions",
            lambda a: a.rope is None or a.rope.dim <= a.dim,
        ),
    )  # fmt: skip

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the list of keys."""
        x, position = inputs
        expect_last(self, x, self.width)
        expect(position == Type((), "i32"), f"KeyIndexer takes a position, got {position}")
        return (Type((1, self.top), "i32"),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the query's compression, which the attention has too, projections and norm."""
        shapes: dict[str, tuple[int, ...]] = {
            "q_a": (self.query_latent, self.width),
            "q_a_norm": (self.query_latent,),
            "index_q": (self.heads * self.dim, self.query_latent),
            "index_k": (self.dim, self.width),
            "index_k_norm": (self.dim,),
            "index_k_norm_bias": (self.dim,),
            "index_weights": (self.heads, self.width),
        }
        return shapes | ({"q_a_bias": (self.query_latent,)} if self.biased else {})

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare one key a position."""
        return {"index": KVRows(1, self.dim, 0)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, RMSNorm, LayerNorm, Reshape, Rope, Quantise, StoreKV, ChooseKeys."""
        x, position = inputs
        k = linear(scope, x, "index_k", self.width, self.dim)
        roles = {"weight": "index_k_norm", "bias": "index_k_norm_bias"}
        norm = ops.LayerNorm(self.dim, self.key_eps)
        k = scope.add(norm, k, name="index_k.norm", weights=roles)
        slots = {"kv": "index"}
        k = self._coded(scope, k, position, "index_k", 1)
        scope.add_node(ops.StoreKV(1, self.dim, 0), k, name="index_store", slots=slots)
        q = compressed_query(scope, x, self.width, self.query_latent, self.eps, self.biased)
        q = linear(scope, q, "index_q", self.query_latent, self.heads * self.dim)
        q = self._coded(scope, q, position, "index_q", self.heads)
        weights = linear(scope, x, "index_weights", self.width, self.heads)
        op = ops.ChooseKeys(self.heads, self.dim, self.top)
        return scope.add(op, q, position, weights, name="keys", slots=slots)

    def _coded(self, scope: Scope, y: Value, position: Value, role: str, heads: int) -> Value:
        """Return heads, rotated and quantised."""
        y = scope.add(ops.Reshape((heads, self.dim)), y, name=f"{role}.heads")
        if self.rope:
            rope = ops.Rope(self.rope, self.pairing)
            y = scope.add(rope, y, position, name=f"{role}.rope")
        return scope.add(ops.Quantise(), y, name=f"{role}.quantised")
