"""Differential attention: pairs of heads, the second's weights subtracted from the first's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import Count, OneOf, Relation, divides
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.recurrent import parts, shaped
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Constant, Epsilon, Pairing
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.rope import RopeTable

HEAD_PAIRS = ("halves", "neighbours")
"""Pairs of heads: h and h + n/2 of n, or 2h and 2h + 1."""


@dataclass(frozen=True)
class DifferentialAttention(Layer):
    """Attention by the difference of two softmaxes: f32[width], position → f32[width].

    q, k, v = Linear(x), q and k with RoPE. Of each pair of heads (q₁, q₂), whose KV heads are
    (k₁, k₂) and (v₁, v₂): y = (softmax(q₁·k₁) − λ·softmax(q₂·k₂))·[v₁ | v₂]; factor·RMSNorm(y);
    Linear.
    Keys and values of a pair are one head of twice the width; the queries are zero on the half that
    is not theirs. Source: Ye et al., "Differential Transformer" (arXiv 2410.05258).

    Attributes
    ----------
    factor : after the norm. pairs : the heads that make one, of queries, keys and values alike.
    weighted : the norm has a weight.
    shares_kv : the layer projects no keys and values: it reads another layer's slot.
    """

    width: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    eps: Epsilon
    factor: Constant
    pairs: Annotated[str, OneOf(HEAD_PAIRS)] = "halves"
    rope: RopeTable | None = None
    pairing: Pairing = "half"
    window: Count | None = None
    biased: bool = False
    output_biased: bool = False
    weighted: bool = False
    shares_kv: bool = False
    relations = (
        divides("kv_heads", "heads"),
        Relation(("kv_heads",), "kv_heads is even", lambda a: a.kv_heads % 2 == 0),
        Relation(
            ("rope", "head_dim"), "a head holds the rotary dimensions",
            lambda a: a.rope is None or a.rope.dim <= a.head_dim,
        ),
    )  # fmt: skip

    @property
    def writes_slots(self) -> bool:
        """Whether the layer writes its KV slot."""
        return not self.shares_kv

    def _counts(self) -> dict[str, int]:
        """Return the heads of each projection that exists."""
        counts = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        return {"q": self.heads} if self.shares_kv else counts

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        wanted = (Type((self.width,)), Type((), "i32"))
        expect(inputs == wanted, f"DifferentialAttention takes {wanted}, got {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, biases, norm, and −λ as `second`."""
        counts = self._counts()
        shapes: dict[str, tuple[int, ...]] = {
            role: (count * self.head_dim, self.width) for role, count in counts.items()
        }
        shapes |= {f"{r}_bias": shapes[r][:1] for r in counts if self.biased}
        shapes |= {"o": (self.width, self.heads * self.head_dim), "second": (1,)}
        shapes |= {"o_bias": (self.width,)} if self.output_biased else {}
        return shapes | ({"norm": (2 * self.head_dim,)} if self.weighted else {})

    @property
    def head_rows(self) -> int:
        """Return the pairs of heads."""
        return self.heads // 2

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the rows of pairs of keys and of values."""
        return {"kv": KVRows(self.kv_heads // 2, 2 * self.head_dim, 2 * self.head_dim)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear, Rope, Slice, Concat, Quantise, StoreKV, Scale, Attend, Gain, Add, RMSNorm, Scale,
        Linear.
        """
        x, position = inputs
        wide, slots = 2 * self.head_dim, {"kv": "kv"}
        kept = (self.kv_heads // 2, wide, wide)
        if not self.shares_kv:
            rows = [self._stored(scope, x, position, role) for role in "kv"]
            scope.add_node(ops.StoreKV(*kept), *rows, name="store", slots=slots)
        first, second = self._pair(scope, x, position, "q")
        none = scope.add(ops.Scale(0.0), first, name="q.none")
        q = scope.add(ops.Concat(), first, none, none, second, name="q.pairs")
        q = shaped(scope, q, "q.wide", self.heads, wide)
        q = scope.add(ops.Quantise(), q, name="q.quantised")
        attend = ops.Attend(self.heads, *kept, self.head_dim**-0.5, self.window)
        y = scope.add(attend, q, position, name="attend", slots=slots)
        y = shaped(scope, y, "attend.pairs", self.heads // 2, 2 * wide)
        first, second = parts(scope, y, first=wide, second=wide).values()
        less = ops.Gain(1, "all")
        second = scope.add(less, second, name="less", weights={"weight": "second"})
        y = scope.add(ops.Add(), first, second, name="difference")
        norm, weights = ops.RMSNorm(wide, self.eps, weighted=self.weighted), {"weight": "norm"}
        y = scope.add(norm, y, name="normed", weights=weights if self.weighted else {})
        y = scope.add(ops.Scale(self.factor), y, name="scaled")
        y = shaped(scope, y, "merged", self.heads * self.head_dim)
        return linear(scope, y, "o", self.heads * self.head_dim, self.width, self.output_biased)

    def _pair(self, scope: Scope, x: Value, position: Value, role: str) -> list[Value]:
        """Write a projection, and return the first and the second head of every pair."""
        heads, dim = self._counts()[role], self.head_dim
        y = linear(scope, x, role, self.width, heads * dim, self.biased)
        if self.rope and role != "v":
            y = shaped(scope, y, f"{role}.heads", heads, dim)
            y = scope.add(ops.Rope(self.rope, self.pairing), y, position, name=f"{role}.rope")
        names = (f"{role}.first", f"{role}.second")
        if self.pairs == "neighbours":
            y = shaped(scope, y, f"{role}.by_pair", heads // 2, 2 * dim)
            return list(parts(scope, y, **dict.fromkeys(names, dim)).values())
        y = shaped(scope, y, f"{role}.row", heads * dim)
        found = parts(scope, y, **{f"{name}.row": heads * dim // 2 for name in names})
        return [
            shaped(scope, part, name, heads // 2, dim)
            for name, part in zip(names, found.values(), strict=True)
        ]

    def _stored(self, scope: Scope, x: Value, position: Value, role: str) -> Value:
        """Write keys or values of pairs, as they are stored."""
        y = scope.add(ops.Concat(), *self._pair(scope, x, position, role), name=f"{role}.pairs")
        return scope.add(ops.Quantise(), y, name=f"{role}.quantised")
