"""Grouped-query attention, with every option per layer."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.op import Type, expect, expect_last
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.rope import RopeTable


@dataclass(frozen=True)
class QKNorm:
    """RMSNorm of every query and key head, over the head width, before RoPE."""

    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class Attention(Layer):
    """Grouped-query attention with its projections: f32[width], position → f32[width].

    q, k, v = Linear(x); per head: [RMSNorm]; RoPE; keys and values to the slot; softmax over the
    visible rows (`window`, `sinks`, `soft_cap`); Linear. All geometry is per layer.

    Attributes
    ----------
    value_dim : width of a value head; `None` means `head_dim`.
    scale : factor on q·k; `None` means head_dim^(-1/2).
    rope : table, or `None` for a layer that rotates nothing.
    shares_kv : the layer projects no keys and values and reads a slot that another layer writes.
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    scale: float | None = None
    rope: RopeTable | None = None
    pairing: str = "half"
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    qk_norm: QKNorm | None = None
    biased: bool = False
    output_biased: bool = False
    shares_kv: bool = False

    @property
    def writes_slots(self) -> bool:
        """Whether the layer writes its KV slot."""
        return not self.shares_kv

    @property
    def value_width(self) -> int:
        """Width of a value head."""
        return self.value_dim or self.head_dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keeps the width."""
        x, position = inputs
        expect_last(self, x, self.width)
        expect(position == Type((), "i32"), f"Attention takes a position, got {position}")
        expect(self.heads % self.kv_heads == 0, f"{self.kv_heads} KV heads for {self.heads} heads")
        return (Type((self.width,)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Projections, norms, biases, sinks."""
        out = {
            "q": self.heads * self.head_dim,
            "k": self.kv_heads * self.head_dim,
            "v": self.kv_heads * self.value_width,
        }
        if self.shares_kv:
            out = {"q": out["q"]}
        shapes: dict[str, tuple[int, ...]] = {r: (n, self.width) for r, n in out.items()}
        shapes["o"] = (self.width, self.heads * self.value_width)
        if self.qk_norm:
            shapes |= {f"{r}_norm": (self.head_dim,) for r in out if r != "v"}
        if self.biased:
            shapes |= {f"{r}_bias": (n,) for r, n in out.items()}
        if self.output_biased:
            shapes["o_bias"] = (self.width,)
        if self.sinks:
            shapes["sinks"] = (self.heads,)
        return shapes

    def slot_kinds(self) -> dict[str, Slot]:
        """Key and value rows."""
        return {"kv": KVRows(self.kv_heads, self.head_dim, self.value_width)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Linear, Reshape, RMSNorm, Rope, Quantise, StoreKV, Attend, Linear."""
        x, position = inputs
        q = self._heads(scope, x, position, "q", self.heads, self.head_dim)
        if not self.shares_kv:
            k = self._heads(scope, x, position, "k", self.kv_heads, self.head_dim)
            v = self._project(scope, x, "v", self.kv_heads, self.value_width)
            k = scope.add(ops.Quantise(), k, name="k.quantised")
            v = scope.add(ops.Quantise(), v, name="v.quantised")
            store = ops.StoreKV(self.kv_heads, self.head_dim, self.value_width)
            scope.add_node(store, k, v, name="store", slots={"kv": "kv"})
        q = scope.add(ops.Quantise(), q, name="q.quantised")
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        attend = ops.Attend(
            self.heads, self.kv_heads, self.head_dim, self.value_width, scale,
            self.window, self.soft_cap, self.sinks,
        )  # fmt: skip
        sinks = {"sinks": "sinks"} if self.sinks else {}
        y = scope.add(attend, q, position, name="attend", weights=sinks, slots={"kv": "kv"})
        width = self.heads * self.value_width
        y = scope.add(ops.Reshape((width,)), y, name="merged")
        return linear(scope, y, "o", width, self.width, self.output_biased)

    def _project(self, scope: Scope, x: Value, role: str, heads: int, dim: int) -> Value:
        y = linear(scope, x, role, self.width, heads * dim, self.biased)
        return scope.add(ops.Reshape((heads, dim)), y, name=f"{role}.heads")

    def _heads(
        self, scope: Scope, x: Value, position: Value, role: str, heads: int, dim: int
    ) -> Value:
        y = self._project(scope, x, role, heads, dim)
        if self.qk_norm:
            norm = ops.RMSNorm(dim, self.qk_norm.eps, self.qk_norm.offset)
            weights = {"weight": f"{role}_norm"}
            y = scope.add(norm, y, name=f"{role}.norm", weights=weights)
        if self.rope:
            y = scope.add(ops.Rope(self.rope, self.pairing), y, position, name=f"{role}.rope")
        return y
