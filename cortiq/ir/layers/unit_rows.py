"""Layers of a normalised transformer: rows of length 1, and gains learned by channel.

Source: Loshchilov et al., "nGPT: normalized transformer" (arXiv 2410.01131); Dory.
"""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation, divides
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.recurrent import shaped
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Constant, Epsilon, Function, ScoreScale
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.rope import RopeTable


def _gained(
    scope: Scope, x: Value, role: str, factor: float, form: str = "plain", name: str = ""
) -> Value:
    """Write x times the gains of a weight in a form, times a factor."""
    (*_, width), name = x.type.shape, name or role
    x = scope.add(ops.Gain(width, form=form), x, name=f"{name}.gained", weights={"weight": role})
    return scope.add(ops.Scale(factor), x, name=name)


@dataclass(frozen=True)
class UnitAttention(Layer):
    """Attention of rows of length 1: f32[width], position → f32[width].

    q, k, v, g = Linear(x); q and k of each head made length 1, RoPE, q · query_factor·s_q²; softmax
    over the visible keys; y · σ(g · gate_factor·s_g²) made length 1; Linear.

    Attributes
    ----------
    scale : factor on q·k.
    eps : added to the sum of squares wherever a row is made length 1.
    query_factor, gate_factor : beside the squares of the weights `query_gain` and `gate_gain`.
    biased : q, k, v and o have biases.
    """

    width: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    scale: ScoreScale
    eps: Epsilon
    query_factor: Constant
    gate_factor: Constant
    rope: RopeTable
    window: Count | None = None
    biased: bool = False
    writes_slots = True
    relations = (
        divides("kv_heads", "heads"),
        Relation(
            ("rope", "head_dim"), "a head holds the rotary dimensions",
            lambda a: a.rope.dim <= a.head_dim,
        ),
    )  # fmt: skip

    @property
    def inner(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        wanted = (Type((self.width,)), Type((), "i32"))
        expect(inputs == wanted, f"UnitAttention takes {wanted}: {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, gains, biases."""
        inner, rows = self.inner, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "q": (inner, self.width), "k": (rows, self.width), "v": (rows, self.width),
            "gate": (inner, self.width), "o": (self.width, inner),
        }  # fmt: skip
        if self.biased:
            shapes |= {f"{role}_bias": shapes[role][:1] for role in "qkvo"}
        return shapes | dict.fromkeys(("query_gain", "gate_gain"), (inner,))

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare key and value rows."""
        return {"kv": KVRows(self.kv_heads, self.head_dim, self.head_dim)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear ×4, L2Norm, Rope, Gain and Scale (queries), Quantise, StoreKV, Attend, Gain, Scale,
        Activation, Multiply, L2Norm, Linear.
        """
        x, position = inputs
        heads = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        rows = {}
        for role, count in heads.items():
            y = linear(scope, x, role, self.width, count * self.head_dim, self.biased)
            y = shaped(scope, y, f"{role}.heads", count, self.head_dim)
            if role != "v":
                y = scope.add(ops.L2Norm(self.head_dim, self.eps), y, name=f"{role}.unit")
                y = scope.add(ops.Rope(self.rope), y, position, name=f"{role}.rope")
            if role == "q":
                y = shaped(scope, y, "q.channels", self.inner)
                y = _gained(scope, y, "query_gain", self.query_factor, "square", "q.scaled")
                y = shaped(scope, y, "q.placed", count, self.head_dim)
            rows[role] = scope.add(ops.Quantise(), y, name=f"{role}.quantised")
        store = ops.StoreKV(self.kv_heads, self.head_dim, self.head_dim)
        scope.add_node(store, rows["k"], rows["v"], name="store", slots={"kv": "kv"})
        attend = ops.Attend(
            self.heads, self.kv_heads, self.head_dim, self.head_dim, self.scale, self.window
        )
        y = scope.add(attend, rows["q"], position, name="attend", slots={"kv": "kv"})
        y = shaped(scope, y, "merged", self.inner)
        gate = linear(scope, x, "gate", self.width, self.inner)
        gate = _gained(scope, gate, "gate_gain", self.gate_factor, "square", "gate.scaled")
        gate = scope.add(ops.Activation("sigmoid"), gate, name="gate.activation")
        y = scope.add(ops.Multiply(), y, gate, name="gated")
        y = scope.add(ops.L2Norm(self.inner, self.eps), y, name="unit")
        return linear(scope, y, "o", self.inner, self.width, self.biased)


@dataclass(frozen=True)
class UnitMLP(Layer):
    """down(a(gate(x)·factor·s_g) · (up(x)·factor·s_u), made length 1): f32[width] → f32[width].

    Attributes
    ----------
    factor : beside the weights `gate_gain` and `up_gain`.
    eps : added to the sum of squares of the inner row.
    """

    width: Count
    inner: Count
    factor: Constant
    eps: Epsilon
    activation: Function = "silu"
    biased: bool = False

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        expect(inputs == (Type((self.width,)),), f"UnitMLP takes f32[{self.width}]: {inputs}")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare three matrices, two gains, biases."""
        wide, narrow = (self.inner, self.width), (self.width, self.inner)
        shapes: dict[str, tuple[int, ...]] = {"gate": wide, "up": wide, "down": narrow}
        if self.biased:
            shapes |= {f"{role}_bias": shape[:1] for role, shape in shapes.items()}
        return shapes | dict.fromkeys(("gate_gain", "up_gain"), (self.inner,))

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear ×2, Gain and Scale of each, Activation, Multiply, L2Norm, Linear."""
        rows = {}
        for role in ("gate", "up"):
            y = linear(scope, inputs[0], role, self.width, self.inner, self.biased)
            rows[role] = _gained(scope, y, f"{role}_gain", self.factor, name=f"{role}.scaled")
        gate = scope.add(ops.Activation(self.activation), rows["gate"], name="activation")
        y = scope.add(ops.Multiply(), gate, rows["up"], name="product")
        y = scope.add(ops.L2Norm(self.inner, self.eps), y, name="unit")
        return linear(scope, y, "down", self.inner, self.width, self.biased)


@dataclass(frozen=True)
class Approach(Layer):
    """x + factor·|rate| · (y − x), a rate by channel: a residual that interpolates.

    f32[width], f32[width] → f32[width].
    """

    width: Count
    factor: Constant

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        row = Type((self.width,))
        expect(inputs == (row, row), f"Approach takes two f32[{self.width}]: {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the rates."""
        return {"rate": (self.width,)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Scale, Add, Gain, Scale, Add."""
        x, y = inputs
        less = scope.add(ops.Scale(-1.0), x, name="less")
        way = scope.add(ops.Add(), y, less, name="difference")
        part = _gained(scope, way, "rate", abs(self.factor), "magnitude", "part")
        return scope.add(ops.Add(), x, part, name="sum")
