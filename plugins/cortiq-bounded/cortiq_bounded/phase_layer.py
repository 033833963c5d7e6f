"""The phase mixer: linear attention on cosines and sines, with a fixed decay for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import Count, Real
from cortiq.ir import Type, ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.op import expect, expect_last
from cortiq.ir.slots import Recurrent, Slot
from cortiq_bounded.ops import PhaseFeatures

Mass = Annotated[float, Real(2.0**-20, 2.0**20, zero=True)]
TENSORS = {
    "thq": "thq.weight", "thk": "thk.weight", "v_proj": "v_proj.weight",
    "out_proj": "out_proj.weight", "A_log": "A_log", "k_gate": "k_gate.weight",
    "k_gate_bias": "k_gate.bias",
}  # fmt: skip
"""Roles to names of tensors, behind `model.layers.N.vmf_attn.`."""


@dataclass(frozen=True)
class PhaseMixer(Layer):
    """S ← γ·S + φ(θk)·(κ·v)ᵀ; o = Sᵀφ(θq), for each head: f32[width], position → f32[width].

    θq, θk, v = Linear(x); φ = (cos θ, sin θ) of `phases` angles; γ = exp(−exp(A_log)) for each of
    both; κ = σ(Linear(x) + bias) a head with `gated` ("hybrid κ"), else 1; Linear. A `mass` divides
    all angles by 1 + mass. The state has one size; the position has no part in it.
    """

    width: Count
    heads: Count
    phases: Count
    value_dim: Count
    gated: bool = False
    mass: Mass = 0.0
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        x, position = inputs
        expect_last(self, x, self.width)
        expect(position == Type((), "i32"), f"PhaseMixer takes a position, got {position}")
        return (Type((self.width,)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, decays and the gate."""
        angles, values = self.heads * self.phases, self.heads * self.value_dim
        shapes: dict[str, tuple[int, ...]] = {
            "thq": (angles, self.width), "thk": (angles, self.width),
            "v_proj": (values, self.width), "out_proj": (self.width, values),
            "A_log": (2 * angles,),
        }  # fmt: skip
        if self.gated:
            shapes |= {"k_gate": (self.heads, self.width), "k_gate_bias": (self.heads,)}
        return shapes

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the map from features to values."""
        return {"state": Recurrent((self.heads, 2 * self.phases, self.value_dim))}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear ×3, Scale, PhaseFeatures, Gain and Activation (the decay), StateSpace, Linear.
        """
        x, heads, wide = inputs[0], self.heads, 2 * self.phases
        queries, keys = (self._features(scope, x, role) for role in ("thq", "thk"))
        values = linear(scope, x, "v_proj", self.width, heads * self.value_dim)
        flat = scope.add(ops.Reshape((heads * wide,)), queries, name="flat")
        ones = self._ones(scope, flat, "ones")
        gain = ops.Gain(heads * wide, form="negative_exp")
        decay = scope.add(gain, ones, name="rates", weights={"weight": "A_log"})
        decay = scope.add(ops.Activation("exp"), decay, name="decays")
        decay = scope.add(ops.Reshape((heads, wide)), decay, name="decay")
        step = self._gate(scope, x, ones)
        values = scope.add(ops.Reshape((heads, self.value_dim)), values, name="values")
        op = ops.StateSpace(heads, self.value_dim, wide, heads)
        y = scope.add(op, values, keys, queries, decay, step, name="read", slots={"state": "state"})
        y = scope.add(ops.Reshape((heads * self.value_dim,)), y, name="merged")
        return linear(scope, y, "out_proj", heads * self.value_dim, self.width)

    def _features(self, scope: Scope, x: Value, role: str) -> Value:
        """Write the angles of a projection, and their features."""
        y = linear(scope, x, role, self.width, self.heads * self.phases)
        if self.mass:
            y = scope.add(ops.Scale(1 / (1 + self.mass)), y, name=f"{role}.scaled")
        y = scope.add(ops.Reshape((self.heads, self.phases)), y, name=f"{role}.angles")
        return scope.add(PhaseFeatures(self.phases), y, name=f"{role}.features")

    def _gate(self, scope: Scope, x: Value, ones: Value) -> Value:
        """Write κ, a number a head."""
        if not self.gated:
            return scope.add(ops.Slice(0, self.heads), ones, name="kappa")
        y = linear(scope, x, "k_gate", self.width, self.heads, biased=True)
        return scope.add(ops.Activation("sigmoid"), y, name="kappa")

    def _ones(self, scope: Scope, x: Value, name: str) -> Value:
        """Write ones of a value's shape."""
        y = scope.add(ops.Scale(0.0), x, name=f"{name}.zero")
        return scope.add(ops.Shift(1.0), y, name=name)
