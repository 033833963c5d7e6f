"""Attention layers that keep a constant amount of memory, however long the sequence is."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from cortiq.domains import Count, Relation, Size
from cortiq.ir import Op, Type, ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers import Attention
from cortiq.ir.layers.basic import Layer, rows_for
from cortiq.ir.slots import Slot
from cortiq_bounded.ops import Landmarks, NystromAttend, Rectifier

STORED = ("k.quantised", "v.quantised")
"""Values that an `Attention` stores."""


def refusal(op: Attention) -> str:
    """Say why an attention layer cannot be bounded; empty if it can."""
    reasons = {
        "has a sliding window already": op.window is not None,
        "has learned sink logits": op.sinks,
        "reads another layer's keys": op.shares_kv,
        "chooses blocks of keys": bool(op.indexer or op.listed or op.chunk),
        "has rows that see later ones": op.until,
        "has positions on several axes": op.sections is not None,
        "caps its scores": op.soft_cap is not None,
        "has values of another width than its keys": op.value_width != op.head_dim,
        "normalises queries after their rotation": bool(op.qk_norm and op.qk_norm.after_rope),
        "turns queries by a table of their own": op.query_rope is not None,
    }
    return next((reason for reason, found in reasons.items() if found), "")


class AttentionScope(Scope):
    """Writes the primitives of an `Attention` but for what the bounded layer writes itself."""

    def __init__(self, outer: Scope, layer: BoundedAttention) -> None:
        super().__init__(outer.builder, outer.node, outer.layouts)
        self.layer = layer
        self.sources: dict[str, Value] = {}

    def add_node(self, op: Op, *inputs: Value, name: str, **roles: Any) -> tuple[Value, ...]:
        """Append an operator, or what stands in its place; keep what each value was made of."""
        self.sources[name] = inputs[0]
        if self.layer.replaces(op, name):
            return self.layer.replaced(self, op, *inputs)
        return super().add_node(op, *inputs, name=name, **roles)

    def keep_node(self, op: Op, *inputs: Value, name: str, **roles: Any) -> tuple[Value, ...]:
        """Append an operator that the layer writes itself."""
        return super().add_node(op, *inputs, name=name, **roles)

    def source(self, *names: str) -> Value:
        """Return the input of the first of these nodes that is there."""
        return next(self.sources[name] for name in names if name in self.sources)


@dataclass(frozen=True)
class BoundedAttention(Layer):
    """Base: an attention layer of the catalogue, whose `Attend` another computation replaces.

    Attributes
    ----------
    inner : the layer as its family wrote it: projections, norms, rotation, gates.
    """

    inner: Attention
    writes_slots = True
    relations = (Relation(("inner",), "the layer can be bounded", lambda a: not refusal(a.inner)),)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer what the inner layer gives."""
        return self.inner.infer(*inputs)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the inner layer's weights."""
        return self.inner.weight_shapes()

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the inner layer's primitives around the attention."""
        return self.inner.decompose(AttentionScope(scope, self), *inputs)

    def replaces(self, op: Op, name: str) -> bool:
        """Check whether the layer writes something else in place of a primitive."""
        return isinstance(op, ops.Attend)

    @abstractmethod
    def replaced(self, scope: AttentionScope, op: Op, *inputs: Value) -> tuple[Value, ...]:
        """Write what stands in place of a primitive."""


@dataclass(frozen=True)
class SinkWindowAttention(BoundedAttention):
    """Softmax over trained sinks and the last `window` rows: `swa_sink_v1`.

    Sinks are keys and values of the layer's own, for each KV head. They have no position: a query
    meets them as it is before its rotation, and rows of the window at their distance. Nothing of a
    row outlives the window.
    """

    window: Count = 128
    trained: Size = 4

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the inner layer's weights, and the sinks'."""
        shapes, inner = super().weight_shapes(), self.inner
        if self.trained:
            shapes["sink_keys"] = (inner.kv_heads, self.trained, inner.head_dim)
            shapes["sink_values"] = (inner.kv_heads, inner.head_dim, self.trained)
        return shapes

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the rows of the window."""
        return self.inner.slot_kinds()

    def replaced(self, scope: AttentionScope, op: Op, *inputs: Value) -> tuple[Value, ...]:
        """Write attention to the window, to the sinks, and both by their shares of the mass.

        Attend, Slice, HeadMatMul, Concat, Scale, Softmax, ScaleRows, Add.
        """
        assert isinstance(op, ops.Attend)
        near = replace(op, window=self.window, mass=self.trained > 0)
        found = scope.keep_node(near, *inputs, name="attend", slots={"kv": "kv"})
        if not self.trained:
            return found
        y, mass = found
        scores = self._by_group(scope, scope.source("q.rope", "q.quantised"), "sink_keys")
        scores = scope.add(ops.Scale(op.scale), scores, name="sink_scores.scaled")
        logits = scope.add(ops.Concat(), scores, mass, name="masses")
        shares = scope.add(ops.Softmax(self.trained + 1), logits, name="shares")
        share = scope.add(ops.Slice(self.trained, self.trained + 1), shares, name="near.share")
        far = scope.add(ops.Slice(0, self.trained), shares, name="sink_shares")
        far = self._by_group(scope, far, "sink_values")
        y = scope.add(ops.ScaleRows(), y, share, name="near.part")
        return (scope.add(ops.Add(), y, far, name="attended"),)

    def _by_group(self, scope: AttentionScope, x: Value, role: str) -> Value:
        """Write the product of each head's row with the matrix of its KV head."""
        inner, (heads, width) = self.inner, x.type.shape
        each, groups = heads // inner.kv_heads, inner.kv_heads
        out = self.weight_shapes()[role][1]
        x = scope.add(ops.Reshape((groups, each * width)), x, name=f"{role}.groups")
        parts = []
        for i in range(each):
            part = scope.add(ops.Slice(i * width, (i + 1) * width), x, name=f"{role}.{i}.rows")
            part = rows_for(scope, role, part, f"{role}.{i}")
            op, weights = ops.HeadMatMul(groups, width, out), {"weight": role}
            parts.append(scope.add(op, part, name=f"{role}.{i}", weights=weights))
        y = parts[0] if each == 1 else scope.add(ops.Concat(), *parts, name=f"{role}.parts")
        return scope.add(ops.Reshape((heads, out)), y, name=f"{role}.heads")


@dataclass(frozen=True)
class NystromAttention(BoundedAttention):
    """Attention that is exact up to `seal` rows, and then sees far ones through landmarks.

    Attributes
    ----------
    seal, landmarks, window, sinks, exact, stride, reseal, rectifier : see `NystromAttend`.
    """

    seal: Count = 512
    landmarks: Landmarks = 32
    window: Count = 128
    sinks: Size = 4
    exact: Size = 0
    stride: Count = 1
    reseal: Size = 0
    rectifier: Rectifier = "aggregate"

    @property
    def attention(self) -> NystromAttend:
        """The primitive, with the inner layer's geometry."""
        inner = self.inner
        scale = inner.head_dim**-0.5 if inner.scale is None else inner.scale
        return NystromAttend(
            inner.heads, inner.kv_heads, inner.head_dim, inner.value_width, scale, self.seal,
            self.landmarks, self.window, self.sinks, self.exact, self.stride, self.reseal,
            self.rectifier,
        )  # fmt: skip

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the state of the attention."""
        return self.attention.slot_kinds()

    def replaces(self, op: Op, name: str) -> bool:
        """Check whether a primitive is part of attention to quantised rows."""
        quantised = isinstance(op, ops.Quantise) and name in ("q.quantised", *STORED)
        return quantised or isinstance(op, ops.StoreKV | ops.Attend)

    def replaced(self, scope: AttentionScope, op: Op, *inputs: Value) -> tuple[Value, ...]:
        """Write the primitive on floats where the attention was; nothing is quantised or stored."""
        if isinstance(op, ops.Quantise):
            return (Value(inputs[0].name, Type(inputs[0].type.shape, "q16")),)
        if isinstance(op, ops.StoreKV):
            return ()
        q, k, v = (scope.source(name) for name in ("q.quantised", *STORED))
        return scope.keep_node(
            self.attention, q, k, v, inputs[1], name="attend", slots={"state": "state"}
        )
