"""Mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import GatedMLP, Layer, linear, rows_for
from cortiq.ir.op import Type, expect
from cortiq.numerics.route import Router


@dataclass(frozen=True)
class MoE(Layer):
    """Mixture of gated MLPs: the experts `router` chooses, weighted, in ascending index.

    scores = Linear(router); `Route`; y = Σ w·down(activation(gate(x)) · up(x)); a shared expert of
    width `shared_inner`, if any, is added last.
    """

    width: int
    inner: int
    experts: int
    router: Router
    activation: str = "silu"
    selection_bias: bool = False
    shared_inner: int = 0

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keeps the width."""
        expect(inputs == (Type((self.width,)),), f"MoE takes f32[{self.width}], got {inputs}")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Router, stacked experts, selection bias, shared expert."""
        n, wide, narrow = self.experts, (self.inner, self.width), (self.width, self.inner)
        shapes: dict[str, tuple[int, ...]] = {
            "router": (n, self.width), "gate": (n, *wide), "up": (n, *wide), "down": (n, *narrow),
        }  # fmt: skip
        if self.selection_bias:
            shapes["bias"] = (n,)
        if self.shared_inner:
            shared = GatedMLP(self.width, self.shared_inner).weight_shapes()
            shapes |= {f"shared_{role}": shape for role, shape in shared.items()}
        return shapes

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Linear, Route, ExpertMatMul ×3 with Activation and Multiply, CombineExperts, shared."""
        (x,) = inputs
        scores = linear(scope, x, "router", self.width, self.experts)
        route = ops.Route(self.experts, self.router, self.selection_bias)
        bias = {"bias": "bias"} if self.selection_bias else {}
        index, weight = scope.add_node(route, scores, name="route", weights=bias)
        gate = self._expert(scope, x, index, "gate", self.width, self.inner)
        up = self._expert(scope, x, index, "up", self.width, self.inner)
        gate = scope.add(ops.Activation(self.activation), gate, name="activation")
        product = scope.add(ops.Multiply(), gate, up, name="product")
        down = self._expert(scope, product, index, "down", self.inner, self.width)
        y = scope.add(ops.CombineExperts(), weight, down, name="combined")
        if not self.shared_inner:
            return y
        shared = GatedMLP(self.width, self.shared_inner, self.activation)
        roles = {role: f"shared_{role}" for role in shared.weight_shapes()}
        extra = scope.add(shared, x, name="shared", weights=roles)
        return scope.add(ops.Add(), y, extra, name="sum")

    def _expert(
        self, scope: Scope, x: Value, index: Value, role: str, inner: int, outer: int
    ) -> Value:
        rows = rows_for(scope, role, x, role)
        matmul = ops.ExpertMatMul(self.experts, inner, outer)
        return scope.add(matmul, rows, index, name=role, weights={"weight": role})
