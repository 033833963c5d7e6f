"""Multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation, Size
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.attention_options import AttentionGate, scaled_by_position
from cortiq.ir.layers.basic import Layer, linear, rows_for
from cortiq.ir.op import Type, expect, expect_last
from cortiq.ir.options import Epsilon, Pairing, ScoreScale
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.rope import RopeTable


def compressed_query(
    scope: Scope, x: Value, width: int, latent: int, eps: float, biased: bool
) -> Value:
    """Write the latent of a layer's queries: Linear and RMSNorm, the roles q_a and q_a_norm."""
    x = linear(scope, x, "q_a", width, latent, biased)
    norm = ops.RMSNorm(latent, eps)
    return scope.add(norm, x, name="q_a.norm", weights={"weight": "q_a_norm"})


@dataclass(frozen=True)
class LatentAttention(Layer):
    """Multi-head latent attention in its absorbed form: f32[width], position → f32[width].

    If keys are `chosen`, a third input i32[1, n] lists those that a row sees (`KeyIndexer`), or
    blocks of so many.

    The slot holds one row [latent | rotary key] per position, of which the latent is also the
    value. Per head: q = [nope | rope]; q' = [nope·W_k[h] | RoPE(rope)]; attend over the slot;
    out[h] = o'·W_v[h]; Linear. Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.

    Attributes
    ----------
    rope_dim : width of the rotary key; 0 for none.
    rope : `None` for a layer that rotates nothing (NoPE).
    query_rope, nope_rope : tables of a query's two parts, where an amplitude grows (`Growth`).
    query_latent : width that queries are compressed to and normalised at; 0 for none.
    biased : the matrices that compress, kv_a and q_a, have biases.
    gated : σ(Linear(x)), a number a head, multiplies the heads' outputs.
    gate_each : that has a number for every value of the outputs instead (Kimi K3).
    sinks : every head has a score of its own that no value belongs to (HunYuan 4).
    shares_kv : the layer makes no latent rows: it reads another layer's slot.
    scalable : queries grow with their position, see `scaled_by_position` (Mistral Large 4).
    block : keys of each block that is listed, where keys are chosen.
    """

    width: Count
    heads: Count
    latent: Count
    nope_dim: Count
    rope_dim: Size
    value_dim: Count
    eps: Epsilon
    scale: ScoreScale
    rope: RopeTable | None = None
    pairing: Pairing = "interleaved"
    query_latent: Size = 0
    biased: bool = False
    output_biased: bool = False
    query_rope: RopeTable | None = None
    nope_rope: RopeTable | None = None
    chosen: bool = False
    gated: bool = False
    gate_each: bool = False
    sinks: bool = False
    shares_kv: bool = False
    scalable: bool = False
    block: Count = 1
    relations = (
        Relation(
            ("rope", "rope_dim"), "rope_dim holds the rotary dimensions",
            lambda a: a.rope is None or a.rope.dim <= a.rope_dim,
        ),
        Relation(
            ("query_rope", "rope_dim"), "rope_dim holds the queries' rotary dimensions",
            lambda a: a.query_rope is None or a.query_rope.dim <= a.rope_dim,
        ),
        Relation(
            ("nope_rope", "nope_dim"), "nope_dim holds the dimensions of its table",
            lambda a: a.nope_rope is None or a.nope_rope.dim <= a.nope_dim,
        ),
        Relation(
            ("gate_each", "gated"), "there is a gate that has numbers",
            lambda a: a.gated or not a.gate_each,
        ),
        Relation(
            ("block", "chosen"), "there is a list of blocks", lambda a: a.chosen or a.block == 1,
        ),
    )  # fmt: skip

    @property
    def writes_slots(self) -> bool:
        """Whether the layer writes its slot."""
        return not self.shares_kv

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        x, position, *keys = inputs
        expect_last(self, x, self.width)
        expect(position == Type((), "i32"), f"LatentAttention takes a position, got {position}")
        expect(len(keys) == self.chosen, f"LatentAttention takes chosen keys or none: {inputs}")
        return (Type((self.width,)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the projections, with the two halves of kv_b as one matrix a head each."""
        q_out, h = self.heads * (self.nope_dim + self.rope_dim), self.heads
        shapes: dict[str, tuple[int, ...]] = {
            "kv_a": (self.latent + self.rope_dim, self.width),
            "kv_a_norm": (self.latent,),
        }
        shapes = {} if self.shares_kv else shapes
        shapes |= {
            "k_b": (h, self.latent, self.nope_dim),
            "v_b": (h, self.value_dim, self.latent),
            "o": (self.width, h * self.value_dim),
        }
        if self.query_latent:
            shapes["q_a"] = (self.query_latent, self.width)
            shapes["q_a_norm"] = (self.query_latent,)
        if self.gated:
            shapes["gate"] = (self._gate.rows(h, self.value_dim), self.width)
        shapes["q"] = (q_out, self.query_latent or self.width)
        if self.sinks:
            shapes["sinks"] = (h,)
        if self.scalable:
            shapes |= {f"q_{role}": (h,) for role in ("growth", "start")}
        biased = {"kv_a": self.biased, "q_a": self.biased, "o": self.output_biased}
        named = [role for role, wanted in biased.items() if wanted and role in shapes]
        return shapes | {f"{role}_bias": shapes[role][:1] for role in named}

    @property
    def _gate(self) -> AttentionGate:
        return AttentionGate("sigmoid", per_head=not self.gate_each)

    @property
    def head_rows(self) -> int:
        """Return the heads."""
        return self.heads

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare one latent row a position."""
        return {"kv": KVRows(1, self.latent + self.rope_dim, self.latent)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, RMSNorm, Slice, Rope, HeadMatMul, StoreKV, Attend, HeadMatMul, Linear."""
        x, position, *keys = inputs
        if not self.shares_kv:
            self._store(scope, x, position)
        q = self._query(scope, x, position)
        q = scope.add(ops.Quantise(), q, name="q.quantised")
        width = self.latent + self.rope_dim
        attend = ops.Attend(
            self.heads, 1, width, self.latent, self.scale, sinks=self.sinks,
            block=self.block if self.chosen else 0,
        )  # fmt: skip
        sinks = {"sinks": "sinks"} if self.sinks else {}
        y = scope.add(attend, q, position, *keys, name="attend", weights=sinks, slots={"kv": "kv"})
        y = self._per_head(scope, y, "v_b", self.latent, self.value_dim)
        if self.gated:
            y = self._gate.applied(scope, x, y, self.width, self.heads, self.value_dim)
        merged = self.heads * self.value_dim
        y = scope.add(ops.Reshape((merged,)), y, name="merged")
        return linear(scope, y, "o", merged, self.width, self.output_biased)

    def _store(self, scope: Scope, x: Value, position: Value) -> None:
        width = self.latent + self.rope_dim
        joint = linear(scope, x, "kv_a", self.width, width, self.biased)
        latent = joint
        if self.rope_dim:
            latent = scope.add(ops.Slice(0, self.latent), joint, name="latent")
        norm = ops.RMSNorm(self.latent, self.eps)
        latent = scope.add(norm, latent, name="latent.norm", weights={"weight": "kv_a_norm"})
        rotary = self._rotary_key(scope, joint, position) if self.rope_dim else None
        value = key = scope.add(ops.Reshape((1, self.latent)), latent, name="latent.head")
        if rotary:
            key = scope.add(ops.Concat(), value, rotary, name="k")
            key = scope.add(ops.Quantise(), key, name="k.quantised")
        value = scope.add(ops.Quantise(), value, name="v.quantised")
        store = ops.StoreKV(1, width, self.latent)
        scope.add_node(store, key if rotary else value, value, name="store", slots={"kv": "kv"})

    def _rotary_key(self, scope: Scope, joint: Value, position: Value) -> Value:
        key = scope.add(ops.Slice(self.latent, self.latent + self.rope_dim), joint, name="k_rope")
        key = scope.add(ops.Reshape((1, self.rope_dim)), key, name="k_rope.head")
        if self.rope is None:
            return key
        return scope.add(ops.Rope(self.rope, self.pairing), key, position, name="k_rope.rotated")

    def _query(self, scope: Scope, x: Value, position: Value) -> Value:
        dim, inner = self.nope_dim + self.rope_dim, self.width
        if self.query_latent:
            inner = self.query_latent
            x = compressed_query(scope, x, self.width, inner, self.eps, self.biased)
        q = linear(scope, x, "q", inner, self.heads * dim)
        q = scope.add(ops.Reshape((self.heads, dim)), q, name="q.heads")
        if self.scalable:
            q = scaled_by_position(scope, q, position, "q")
        nope = q
        if self.rope_dim:
            nope = scope.add(ops.Slice(0, self.nope_dim), q, name="q.nope")
        if self.nope_rope:
            grown = ops.Rope(self.nope_rope, self.pairing)
            nope = scope.add(grown, nope, position, name="q.nope.grown")
        nope = self._per_head(scope, nope, "k_b", self.nope_dim, self.latent)
        if not self.rope_dim:
            return nope
        rope = scope.add(ops.Slice(self.nope_dim, dim), q, name="q.rope")
        table = self.query_rope or self.rope
        if table:
            rope = scope.add(ops.Rope(table, self.pairing), rope, position, name="q.rotated")
        return scope.add(ops.Concat(), nope, rope, name="q.absorbed")

    def _per_head(self, scope: Scope, x: Value, role: str, inner: int, outer: int) -> Value:
        rows = rows_for(scope, role, x, role)
        matmul = ops.HeadMatMul(self.heads, inner, outer)
        return scope.add(matmul, rows, name=role, weights={"weight": role})
