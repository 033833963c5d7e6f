"""Lightning attention: linear attention whose heads forget at rates of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import Count, Real, Relation
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.moments import ones
from cortiq.ir.layers.recurrent import parts, shaped
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Constant, Epsilon, Function
from cortiq.ir.slots import Recurrent, Slot
from cortiq.numerics.rope import RopeTable

Rate = Annotated[float, Real(2.0**-40, 2.0)]
"""Rate at which a head forgets, α = e^(−rate)."""
Ratio = Annotated[float, Real(2.0**-40, 1.0)]


@dataclass(frozen=True)
class LightningAttention(Layer):
    """Linear attention with a constant decay a head: f32[width], [position] → f32[width].

    [q | k | v] = activation(Linear(x)) for each head in turn; S ← α·S + k·vᵀ with
    α = exp(−slope·ratioⁿ) of head n; o = Sᵀq; Linear(RMSNorm(o) · σ(Linear(x))), the norm over all
    heads. Source: Qin et al., "Lightning Attention-2" (arXiv 2401.04658); MiniMax-01 (2501.08313);
    Ling 2.5 for the options.

    Attributes
    ----------
    slope : rate of the first head; ratio : of each head's rate and that of the one before it.
    activation : None for none.
    apart : Linear(x) has the queries of all heads, then their keys, then their values.
    key_eps : ε of norms of queries and keys, a head each; None for none.
    rope : of queries and keys, halves of a head as pairs; the layer then takes a position.
    scale : factor of the queries.
    norm_groups : parts of o that are normed each, and then multiplied by the weight.
    """

    width: Count
    heads: Count
    head_dim: Count
    eps: Epsilon
    slope: Rate
    ratio: Ratio
    activation: Function | None = "silu"
    apart: bool = False
    key_eps: Epsilon | None = None
    rope: RopeTable | None = None
    scale: Constant = 1.0
    norm_groups: Count = 1
    writes_slots = True
    relations = (
        Relation(
            ("rope", "head_dim"), "a head holds the rotary dimensions",
            lambda a: a.rope is None or a.rope.dim <= a.head_dim,
        ),
        Relation(
            ("norm_groups", "heads", "head_dim"), "groups of a norm are equal",
            lambda a: a.inner % a.norm_groups == 0,
        ),
    )  # fmt: skip

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        wanted = (Type((self.width,)), *[Type((), "i32")] * bool(self.rope))
        expect(inputs == wanted, f"LightningAttention takes {wanted}, got {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections and norm."""
        keys = () if self.key_eps is None else ("q_norm", "k_norm")
        return {
            "qkv": (3 * self.inner, self.width),
            "gate": (self.inner, self.width),
            "norm": (self.inner,),
            "out": (self.width, self.inner),
            **dict.fromkeys(keys, (self.head_dim,)),
        }

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the state: the map from keys to values."""
        return {"state": Recurrent((self.heads, self.head_dim, self.head_dim))}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear, Activation, Slice, [RMSNorm, Rope, Scale], [Scale, Shift, Concat, Activation (the
        decays)], StateSpace, RMSNorm, [Gain], Activation, Multiply, Linear.
        """
        joint = linear(scope, inputs[0], "qkv", self.width, 3 * self.inner)
        if self.activation is not None:
            joint = scope.add(ops.Activation(self.activation), joint, name="qkv.activation")
        one = ones(scope, joint, self.heads, "step")
        q, k, v = self._rows(scope, joint)
        q, k = (self._placed(scope, x, *inputs[1:], name=n) for n, x in (("q", q), ("k", k)))
        if self.scale != 1.0:
            q = scope.add(ops.Scale(self.scale), q, name="q.scaled")
        space = ops.StateSpace(self.heads, self.head_dim, self.head_dim, self.heads)
        alpha, slots = self._decays(scope, one), {"state": "state"}
        y = scope.add(space, v, k, q, alpha, one, name="space", slots=slots)
        y = self._normed(scope, y)
        gate = linear(scope, inputs[0], "gate", self.width, self.inner)
        gate = scope.add(ops.Activation("sigmoid"), gate, name="gate.activation")
        y = scope.add(ops.Multiply(), gate, y, name="gated")
        return linear(scope, y, "out", self.inner, self.width)

    def _rows(self, scope: Scope, joint: Value) -> Sequence[Value]:
        """Return queries, keys and values, a row a head."""
        if not self.apart:
            rows = shaped(scope, joint, "qkv.heads", self.heads, 3 * self.head_dim)
            return tuple(parts(scope, rows, **dict.fromkeys("qkv", self.head_dim)).values())
        whole = parts(scope, joint, **dict.fromkeys(("q.all", "k.all", "v.all"), self.inner))
        named = zip("qkv", whole.values(), strict=True)
        return [shaped(scope, x, name, self.heads, self.head_dim) for name, x in named]

    def _placed(self, scope: Scope, x: Value, *position: Value, name: str) -> Value:
        """Return queries or keys, normed and rotated as far as asked for."""
        if self.key_eps is not None:
            norm, weights = ops.RMSNorm(self.head_dim, self.key_eps), {"weight": f"{name}_norm"}
            x = scope.add(norm, x, name=f"{name}.norm", weights=weights)
        if self.rope:
            x = scope.add(ops.Rope(self.rope, "half"), x, *position, name=f"{name}.rope")
        return x

    def _normed(self, scope: Scope, y: Value) -> Value:
        """Return the normed row of all heads."""
        weights, groups = {"weight": "norm"}, self.norm_groups
        if groups == 1:
            y = shaped(scope, y, "space.merged", self.inner)
            norm = ops.RMSNorm(self.inner, self.eps)
            return scope.add(norm, y, name="space.norm", weights=weights)
        y = shaped(scope, y, "space.groups", groups, self.inner // groups)
        norm = ops.RMSNorm(self.inner // groups, self.eps, weighted=False)
        y = scope.add(norm, y, name="space.norm")
        y = shaped(scope, y, "space.merged", self.inner)
        return scope.add(ops.Gain(self.inner), y, name="space.gained", weights=weights)

    def _decays(self, scope: Scope, one: Value) -> Value:
        """Return each head's decay: the rates of n heads, times ratioⁿ, are those of n more."""
        first = scope.add(ops.Slice(0, 1), one, name="rates.first") if self.heads > 1 else one
        rates = scope.add(ops.Scale(-self.slope), first, name="rates.1")
        count = 1
        while count < self.heads:
            more = min(count, self.heads - count)
            part = rates
            if more < count:
                part = scope.add(ops.Slice(0, more), rates, name=f"rates.{count}.part")
            part = scope.add(ops.Scale(self.ratio**count), part, name=f"rates.{count}.next")
            count += more
            rates = scope.add(ops.Concat(), rates, part, name=f"rates.{count}")
        return scope.add(ops.Activation("exp"), rates, name="decay")
