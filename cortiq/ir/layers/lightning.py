"""Lightning attention: linear attention whose heads forget at rates of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import Count, Real
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.moments import ones
from cortiq.ir.layers.recurrent import parts, shaped
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Epsilon, Function
from cortiq.ir.slots import Recurrent, Slot

Rate = Annotated[float, Real(2.0**-40, 1.0)]
"""Rate at which a head forgets, α = e^(−rate); also the ratio of two such rates."""


@dataclass(frozen=True)
class LightningAttention(Layer):
    """Linear attention with a constant decay a head: f32[width] → f32[width].

    [q | k | v] = activation(Linear(x)) for each head in turn; S ← α·S + k·vᵀ with
    α = exp(−slope·ratioⁿ) of head n; o = Sᵀq; Linear(RMSNorm(o) · σ(Linear(x))), the norm over all
    heads. Source: Qin et al., "Lightning Attention-2" (arXiv 2401.04658); MiniMax-01 (2501.08313).

    Attributes
    ----------
    slope : rate of the first head; ratio : of each head's rate and that of the one before it.
    """

    width: Count
    heads: Count
    head_dim: Count
    eps: Epsilon
    slope: Rate
    ratio: Rate
    activation: Function = "silu"
    writes_slots = True

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        rows = (Type((self.width,)),)
        expect(inputs == rows, f"LightningAttention takes f32[{self.width}]: {inputs}")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections and norm."""
        return {
            "qkv": (3 * self.inner, self.width),
            "gate": (self.inner, self.width),
            "norm": (self.inner,),
            "out": (self.width, self.inner),
        }

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the state: the map from keys to values."""
        return {"state": Recurrent((self.heads, self.head_dim, self.head_dim))}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear, Activation, Slice, [Scale, Shift, Concat, Activation (the decays)], StateSpace,
        RMSNorm, Activation, Multiply, Linear.
        """
        joint = linear(scope, inputs[0], "qkv", self.width, 3 * self.inner)
        joint = scope.add(ops.Activation(self.activation), joint, name="qkv.activation")
        one = ones(scope, joint, self.heads, "step")
        rows = shaped(scope, joint, "qkv.heads", self.heads, 3 * self.head_dim)
        q, k, v = parts(scope, rows, **dict.fromkeys("qkv", self.head_dim)).values()
        space = ops.StateSpace(self.heads, self.head_dim, self.head_dim, self.heads)
        alpha, slots = self._decays(scope, one), {"state": "state"}
        y = scope.add(space, v, k, q, alpha, one, name="space", slots=slots)
        y = shaped(scope, y, "space.merged", self.inner)
        norm = ops.RMSNorm(self.inner, self.eps)
        y = scope.add(norm, y, name="space.norm", weights={"weight": "norm"})
        gate = linear(scope, inputs[0], "gate", self.width, self.inner)
        gate = scope.add(ops.Activation("sigmoid"), gate, name="gate.activation")
        y = scope.add(ops.Multiply(), gate, y, name="gated")
        return linear(scope, y, "out", self.inner, self.width)

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
