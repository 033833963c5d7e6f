"""Grouped-query attention, with every option per layer."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Size
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.attention_options import (
    PROJECTIONS,
    RELATIONS,
    AttentionGate,
    ListedBlocks,
    Projection,
    QKNorm,
    clipped,
    parted,
)
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.indexer import Indexer
from cortiq.ir.op import Op, Type, expect, expect_last
from cortiq.ir.options import Constant, Epsilon, Pairing, Positive, ScoreCap, ScoreScale, Slope
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.rope import RopeTable, Sections


@dataclass(frozen=True)
class Attention(Layer):
    """Grouped-query attention with its projections: f32[width], position → f32[width].

    q, k, v = Linear(x); per head: [RMSNorm]; RoPE; keys and values to the slot; softmax over the
    visible rows (`window`, `sinks`, `soft_cap`); [gates]; Linear. All geometry is per layer.
    Further inputs, in this order, if the options ask for them: the last key i32[] that the row sees
    (`until`), positions i32[axes] of RoPE (`sections`), blocks i32[1, n] of keys (`listed`), the
    values' row f32[width] (`value_input`).

    Attributes
    ----------
    value_dim : width of a value head; `None` means `head_dim`.
    scale : factor on q·k; `None` means head_dim^(-1/2).
    rope : table, `None` for none. query_rope : that of queries if its amplitude grows (`Growth`).
    sections : rotary pairs by the axis whose position turns them (mRoPE).
    value_norm : eps of a norm without weight on value heads. value_scale : factor on values.
    biased : q, k and v have biases; or the names of those that have one.
    output_gate : q is twice as wide, [q | gate] in every head: the head's output times σ(gate).
    gate : a further gate, with a matrix of its own.
    value_input : values are projected from another row (value residual).
    shares_kv : the layer projects no keys and values: it reads another layer's slot.
    indexer : chooses the blocks of visible keys.
    until : rows see keys after themselves, up to one that they supply (`ops.Attend`).
    joint : q, k and v are one matrix `qkv`, whose rows are by KV head: queries, key, value.
    chunk : rows see only the keys of their own chunk of so many positions, 0 for all.
    listed : rows see only the keys of blocks that they supply.
    clip : bound of the magnitudes of q, k and v as their projections give them.
    slopes : of each head: scores lose so much with every position between key and query (ALiBi).
    output_norm : eps of a norm over all heads' outputs together, before the last Linear (BitNet).
    """

    width: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    value_dim: Count | None = None
    scale: ScoreScale | None = None
    rope: RopeTable | None = None
    pairing: Pairing = "half"
    window: Count | None = None
    soft_cap: ScoreCap | None = None
    sinks: bool = False
    qk_norm: QKNorm | None = None
    biased: bool | tuple[Projection, ...] = False
    output_biased: bool = False
    shares_kv: bool = False
    value_norm: Epsilon | None = None
    value_scale: Constant = 1.0
    output_gate: bool = False
    gate: AttentionGate | None = None
    value_input: bool = False
    sections: Sections | None = None
    indexer: Indexer | None = None
    query_rope: RopeTable | None = None
    until: bool = False
    chunk: Size = 0
    joint: bool = False
    listed: ListedBlocks | None = None
    slopes: tuple[Slope, ...] = ()
    clip: Positive | None = None
    output_norm: Epsilon | None = None
    relations = RELATIONS

    @property
    def writes_slots(self) -> bool:
        """Whether the layer writes its KV slot."""
        return not self.shares_kv

    @property
    def value_width(self) -> int:
        """Width of a value head."""
        return self.value_dim or self.head_dim

    @property
    def biases(self) -> tuple[str, ...]:
        """Projections that have a bias."""
        if self.joint:
            return ("qkv",) if self.biased else ()
        if isinstance(self.biased, bool):
            return PROJECTIONS if self.biased else ()
        return self.biased

    def _rows(self) -> dict[str, int]:
        """Return the width of each projection that exists."""
        rows = {
            "q": self.heads * self.head_dim * (2 if self.output_gate else 1),
            "k": self.kv_heads * self.head_dim,
            "v": self.kv_heads * self.value_width,
        }
        return {"q": rows["q"]} if self.shares_kv else rows

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        x, position, *others = inputs
        expect_last(self, x, self.width)
        expect(position == Type((), "i32"), f"Attention takes a position, got {position}")
        wanted = [Type((), "i32")] if self.until else []
        wanted += [Type((self.sections.count,), "i32")] if self.sections else []
        wanted += [self.listed.type] if self.listed else []
        wanted += [Type((self.width,))] if self.value_input else []
        expect(others == wanted, f"Attention takes {wanted} after the position, got {others}")
        return (Type((self.width,)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, norms, biases, gate, sinks."""
        rows = self._rows()
        shapes: dict[str, tuple[int, ...]] = {r: (n, self.width) for r, n in rows.items()}
        if self.joint:
            shapes = {"qkv": (sum(rows.values()), self.width)}
        merged = self.heads * self.value_width
        shapes["o"] = (self.width, merged)
        shapes |= {"output_norm": (merged,)} if self.output_norm is not None else {}
        if self.qk_norm and self.qk_norm.weighted:
            ends = ("_norm", "_norm_bias")[: 1 + self.qk_norm.biased]
            normed = [r for r in rows if r != "v"]
            shapes |= {f"{r}{end}": (self._norm_gains(r),) for r in normed for end in ends}
        shapes |= {f"{r}_bias": shapes[r][:1] for r in self.biases if r in shapes}
        if self.output_biased:
            shapes["o_bias"] = (self.width,)
        if self.gate:
            shapes["gate"] = (self.gate.rows(self.heads, self.value_width), self.width)
        if self.sinks:
            shapes["sinks"] = (self.heads,)
        return shapes | (self.indexer.weight_shapes(self.width) if self.indexer else {})

    def _norm_width(self, role: str) -> int:
        heads = self.heads if role == "q" else self.kv_heads
        full = self.qk_norm is not None and self.qk_norm.full_width
        return self.head_dim * (heads if full else 1)

    def _norm_gains(self, role: str) -> int:
        by_head = self.qk_norm is not None and self.qk_norm.by_head
        return self._rows()[role] if by_head else self._norm_width(role)

    @property
    def head_rows(self) -> int:
        """Return the heads."""
        return self.heads

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare key and value rows."""
        rows: dict[str, Slot] = {"kv": KVRows(self.kv_heads, self.head_dim, self.value_width)}
        return rows | ({"index": self.indexer.slot()} if self.indexer else {})

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear, Reshape, RMSNorm, Rope, Quantise, StoreKV, [Indexer], Attend, gates, Linear.
        """
        x, position = inputs[:2]
        turned = inputs[2 + self.until] if self.sections else position
        given = parted(scope, x, self) if self.joint else {}
        q = given.get("q") or self._project(scope, x, "q")
        gate = None
        if self.output_gate:
            gate = scope.add(ops.Slice(self.head_dim, 2 * self.head_dim), q, name="q.gate")
            q = scope.add(ops.Slice(0, self.head_dim), q, name="q.query")
        q = self._placed(scope, q, turned, "q")
        if not self.shares_kv:
            self._store(scope, x, turned, inputs[-1] if self.value_input else x, given)
        q = scope.add(ops.Quantise(), q, name="q.quantised")
        last = inputs[2] if self.until else position
        listed = inputs[2 + self.until + bool(self.sections)] if self.listed else None
        y = self._gated(scope, x, self._attend(scope, q, x, last, listed), gate)
        width = self.heads * self.value_width
        y = scope.add(ops.Reshape((width,)), y, name="merged")
        if self.output_norm is not None:
            norm, weights = ops.RMSNorm(width, self.output_norm), {"weight": "output_norm"}
            y = scope.add(norm, y, name="merged.norm", weights=weights)
        return linear(scope, y, "o", width, self.width, self.output_biased)

    def _attend(
        self, scope: Scope, q: Value, x: Value, position: Value, listed: Value | None
    ) -> Value:
        """Write the attention and return the heads' outputs."""
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        chosen = self.indexer and self.indexer.block
        block = chosen or (self.listed.size if self.listed else self.chunk)
        attend = ops.Attend(
            self.heads, self.kv_heads, self.head_dim, self.value_width, scale, self.window,
            self.soft_cap, self.sinks, block, self.until, slopes=self.slopes,
        )  # fmt: skip
        if self.indexer:
            listed = self.indexer.choose(scope, x, position, self.rope, self.pairing)
        elif self.chunk:
            listed = scope.add(ops.OwnBlock(self.chunk), position, name="chunk")
        inputs = [q, position] if listed is None else [q, position, listed]
        sinks = {"sinks": "sinks"} if self.sinks else {}
        return scope.add(attend, *inputs, name="attend", weights=sinks, slots={"kv": "kv"})

    def _store(
        self, scope: Scope, x: Value, position: Value, values: Value, given: dict[str, Value]
    ) -> None:
        """Store keys and values in the slot."""
        k = self._placed(scope, given.get("k") or self._project(scope, x, "k"), position, "k")
        v = given.get("v") or self._project(scope, values, "v")
        if self.value_norm is not None:
            norm = ops.RMSNorm(self.value_width, self.value_norm, weighted=False)
            v = scope.add(norm, v, name="v.norm")
        if self.value_scale != 1.0:
            v = scope.add(ops.Scale(self.value_scale), v, name="v.scaled")
        k = scope.add(ops.Quantise(), k, name="k.quantised")
        v = scope.add(ops.Quantise(), v, name="v.quantised")
        store = ops.StoreKV(self.kv_heads, self.head_dim, self.value_width)
        scope.add_node(store, k, v, name="store", slots={"kv": "kv"})

    def _project(self, scope: Scope, x: Value, role: str) -> Value:
        """Write one projection and return its heads."""
        rows = self._rows()[role]
        heads = self.heads if role == "q" else self.kv_heads
        y = linear(scope, x, role, self.width, rows, role in self.biases)
        y = clipped(scope, y, self.clip, role)
        if role != "v" and self.qk_norm and self.qk_norm.full_width:
            y = self._norm(scope, y, role, self.qk_norm)
        return scope.add(ops.Reshape((heads, rows // heads)), y, name=f"{role}.heads")

    def _norm(self, scope: Scope, y: Value, role: str, norm: QKNorm) -> Value:
        if norm.by_head:
            return self._norm_by_head(scope, y, role, norm)
        width, weights = self._norm_width(role), {"weight": f"{role}_norm"} if norm.weighted else {}
        if norm.centred:
            centred = ops.LayerNorm(width, norm.eps, True, norm.offset)
            weights |= {"bias": f"{role}_norm_bias"}
            return scope.add(centred, y, name=f"{role}.norm", weights=weights)
        op = ops.RMSNorm(width, norm.eps, norm.offset, norm.weighted)
        return scope.add(op, y, name=f"{role}.norm", weights=weights)

    def _norm_by_head(self, scope: Scope, y: Value, role: str, norm: QKNorm) -> Value:
        """Write the norm without a weight, then the gains of all heads' values."""
        heads, width = y.type.shape
        plain: Op = ops.RMSNorm(width, norm.eps, weighted=False)
        if norm.centred:
            plain = ops.LayerNorm(width, norm.eps, biased=False, weighted=False)
        y = scope.add(plain, y, name=f"{role}.norm")
        y = scope.add(ops.Reshape((heads * width,)), y, name=f"{role}.norm.joined")
        gains = ops.Gain(heads * width)
        y = scope.add(gains, y, name=f"{role}.norm.gained", weights={"weight": f"{role}_norm"})
        return scope.add(ops.Reshape((heads, width)), y, name=f"{role}.norm.heads")

    def _placed(self, scope: Scope, y: Value, position: Value, role: str) -> Value:
        """Return the heads of q or k after norm and RoPE, in the layer's order."""
        norm = self.qk_norm if self.qk_norm and not self.qk_norm.full_width else None
        if norm and not norm.after_rope:
            y = self._norm(scope, y, role, norm)
        table = (self.query_rope or self.rope) if role == "q" else self.rope
        if table:
            rope = ops.Rope(table, self.pairing, self.sections)
            y = scope.add(rope, y, position, name=f"{role}.rope")
        if norm and norm.after_rope:
            y = self._norm(scope, y, role, norm)
        return y

    def _gated(self, scope: Scope, x: Value, y: Value, gate: Value | None) -> Value:
        """Return the heads' outputs multiplied by the gates."""
        if gate:
            gate = scope.add(ops.Activation("sigmoid"), gate, name="output_gate")
            y = scope.add(ops.Multiply(), y, gate, name="output_gated")
        sizes = self.width, self.heads, self.value_width
        return self.gate.applied(scope, x, y, *sizes) if self.gate else y
