"""Mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation, Size
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear, rows_for
from cortiq.ir.layers.mlp import MLP, Activation, GatedMLP, halves, join
from cortiq.ir.op import Described, Type, expect
from cortiq.ir.options import Cap, Constant, Epsilon
from cortiq.numerics.route import Router


@dataclass(frozen=True)
class RouterNorm(Described):
    """Normalisation of a router's input: RMSNorm, and a constant factor."""

    eps: Epsilon
    factor: Constant = 1.0
    weighted: bool = True


@dataclass(frozen=True)
class MoE(Layer):
    """Mixture of MLPs: the experts `router` chooses, weighted, in ascending index.

    scores = Linear(router); `Route`; y = Σ w·down(activation(gate(x)) · up(x)); a shared expert of
    width `shared_inner`, if any, is added last. f32[width] → f32[width]; with `router_input` a
    second input f32[width] is what the router reads.

    Attributes
    ----------
    selection_bias : a vector `bias` moves the choice and no weight.
    masked : a vector `mask` admits the experts where it is not 0.
    gated : experts are gated MLPs; otherwise down(activation(up(x))).
    interleaved : one stack `gate_up` holds the rows of gate and up in turns.
    biased, router_biased, shared_biased : whether the matrices have biases.
    shared_factor : the shared expert's output times σ(v·x), v of the role `shared_factor`.
    expert_scale : weights are multiplied by a number of each expert, after all else.
    router_cap : soft cap of the scores.
    weighs_gate : gate(x) is multiplied by the expert's weight, too: as if up and gate read
        weight·x and the sum had no weights (Llama 4).
    shared_activation : of the shared expert, where it is not that of the others.
    latent : experts work on Linear(x) of this width, and their sum is projected back.
    latent_norm : ε of an RMSNorm of that sum before it is projected (Kimi K3).
    listed : size of the vocabulary, where the experts follow from the token: a last input i32[], of
        which a `table` lists them. The router's scores then only weigh them.
    """

    width: Count
    inner: Count
    experts: Count
    router: Router
    activation: Activation = "silu"
    selection_bias: bool = False
    shared_inner: Size = 0
    masked: bool = False
    gated: bool = True
    interleaved: bool = False
    biased: bool = False
    router_biased: bool = False
    shared_biased: bool = False
    shared_factor: bool = False
    expert_scale: bool = False
    router_cap: Cap | None = None
    router_norm: RouterNorm | None = None
    router_input: bool = False
    latent: Size = 0
    latent_biased: bool = False
    latent_norm: Epsilon | None = None
    listed: Size = 0
    weighs_gate: bool = False
    shared_activation: Activation | None = None
    relations = (
        Relation(
            ("experts", "router"), "groups are equal and hold top_k experts",
            lambda moe: not moe.router.refusal(moe.experts),
        ),
        Relation(
            ("router", "selection_bias"), "a sparse mixer chooses by its scores alone",
            lambda moe: moe.router.margin is None or not moe.selection_bias,
        ),
        Relation(
            ("gated", "activation", "interleaved"), "plain experts have no gate to join",
            lambda moe: moe.gated or (isinstance(moe.activation, str) and not moe.interleaved),
        ),
        Relation(
            ("weighs_gate", "gated", "interleaved", "biased"),
            "weights go on a gate that is a matrix of its own and has no bias",
            lambda moe: not moe.weighs_gate or (moe.gated and not moe.interleaved | moe.biased),
        ),
        Relation(
            ("latent_norm", "latent"), "there is a latent sum to norm",
            lambda moe: bool(moe.latent) or moe.latent_norm is None,
        ),
        Relation(
            ("shared_factor", "shared_inner"), "there is a shared expert to multiply",
            lambda moe: bool(moe.shared_inner) or not moe.shared_factor,
        ),
    )  # fmt: skip

    @property
    def expert_width(self) -> int:
        """Width of what the experts read and write."""
        return self.latent or self.width

    @property
    def shared(self) -> Layer:
        """The shared expert."""
        if self.gated:
            inner, act = self.shared_inner, self.shared_activation or self.activation
            return GatedMLP(self.width, inner, act, self.shared_biased)
        return MLP(self.width, self.shared_inner, str(self.activation), self.shared_biased)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        wanted = [Type((self.width,))] * (2 if self.router_input else 1)
        wanted += [Type((), "i32")] * bool(self.listed)
        expect(list(inputs) == wanted, f"MoE takes {wanted}, got {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare router, stacked experts, projections around them, and shared expert."""
        shapes = self.score_shapes() | self._expert_shapes() | self._router_vectors()
        if self.latent:
            around = {
                "latent_in": (self.latent, self.width),
                "latent_out": (self.width, self.latent),
            }
            shapes |= around
            if self.latent_norm is not None:
                shapes["latent_norm"] = (self.latent,)
            if self.latent_biased:
                shapes |= {f"{role}_bias": shape[:1] for role, shape in around.items()}
        if self.shared_inner:
            shared = self.shared.weight_shapes()
            shapes |= {f"shared_{role}": shape for role, shape in shared.items()}
        if self.shared_factor:
            shapes["shared_factor"] = (1, self.width)
        return shapes

    def score_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare what `scores` multiplies."""
        return {"router": (self.experts, self.width)}

    def scores(self, scope: Scope, x: Value) -> Value:
        """Write the experts' scores: Linear."""
        return linear(scope, x, "router", self.width, self.experts, self.router_biased)

    def _router_vectors(self) -> dict[str, tuple[int, ...]]:
        there = {
            "bias": self.selection_bias,
            "mask": self.masked,
            "expert_scale": self.expert_scale,
            "router_bias": self.router_biased,
        }
        shapes: dict[str, tuple[int, ...]] = {
            role: (self.experts,) for role, wanted in there.items() if wanted
        }
        if self.router_norm and self.router_norm.weighted:
            shapes["router_norm"] = (self.width,)
        if self.listed:
            shapes["table"] = (self.listed, self.router.top_k)
        return shapes

    def _expert_shapes(self) -> dict[str, tuple[int, ...]]:
        rows = {"gate": self.inner, "up": self.inner, "down": self.expert_width}
        if not self.gated:
            del rows["gate"]
        if self.interleaved:
            rows = {"gate_up": 2 * self.inner, "down": self.expert_width}
        shapes: dict[str, tuple[int, ...]] = {
            role: (self.experts, n, self.inner if role == "down" else self.expert_width)
            for role, n in rows.items()
        }
        if self.biased:
            shapes |= {f"{role}_bias": shape[:2] for role, shape in shapes.items()}
        return shapes

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, Route, ExpertMatMul with activation, CombineExperts, shared expert."""
        x = inputs[0]
        read = inputs[1] if self.router_input else x
        index, weight = self._route(scope, read, inputs[-1])
        rows = x
        if self.latent:
            rows = linear(scope, x, "latent_in", self.width, self.latent, self.latent_biased)
        down = self._experts(scope, rows, index, weight)
        y = scope.add(ops.CombineExperts(), weight, down, name="combined")
        if self.latent_norm is not None:
            norm, weights = ops.RMSNorm(self.latent, self.latent_norm), {"weight": "latent_norm"}
            y = scope.add(norm, y, name="combined.norm", weights=weights)
        if self.latent:
            y = linear(scope, y, "latent_out", self.latent, self.width, self.latent_biased)
        if not self.shared_inner:
            return y
        return scope.add(ops.Add(), y, self._shared_output(scope, x), name="sum")

    def _route(self, scope: Scope, x: Value, token: Value) -> tuple[Value, Value]:
        """Return the chosen experts and their weights."""
        if self.router_norm:
            norm = self.router_norm
            weights = {"weight": "router_norm"} if norm.weighted else {}
            op = ops.RMSNorm(self.width, norm.eps, weighted=norm.weighted)
            x = scope.add(op, x, name="router.norm", weights=weights)
            if norm.factor != 1.0:
                x = scope.add(ops.Scale(norm.factor), x, name="router.scaled")
        scores = self.scores(scope, x)
        if self.router_cap is not None:
            scores = scope.add(ops.SoftCap(self.router_cap), scores, name="router.capped")
        if self.listed:
            keep = ops.KeepListed(self.experts, self.listed, self.router.top_k)
            weights = {"table": "table"}
            scores = scope.add(keep, scores, token, name="router.listed", weights=weights)
        route = ops.Route(self.experts, self.router, self.selection_bias, self.masked)
        roles = {role: role for role in route.weight_shapes()}
        index, weight = scope.add_node(route, scores, name="route", weights=roles)
        if self.expert_scale:
            gain, weights = ops.ExpertGain(self.experts), {"weight": "expert_scale"}
            weight = scope.add(gain, weight, index, name="route.scaled", weights=weights)
        return index, weight

    def _experts(self, scope: Scope, x: Value, index: Value, weight: Value) -> Value:
        """Return the outputs of the chosen experts, without their weights."""
        width, inner = self.expert_width, self.inner
        if not self.gated:
            up = self._expert(scope, x, index, "up", width, inner)
            act = ops.Activation(str(self.activation))
            product = scope.add(act, up, name="activation")
        else:
            if self.interleaved:
                both = self._expert(scope, x, index, "gate_up", width, 2 * inner)
                gate, up = halves(scope, both, inner)
            else:
                gate = self._expert(scope, x, index, "gate", width, inner)
                up = self._expert(scope, x, index, "up", width, inner)
            if self.weighs_gate:
                column = scope.add(ops.Reshape((self.router.top_k, 1)), weight, name="weights")
                gate = scope.add(ops.ScaleRows(), gate, column, name="gate.weighted")
            product = join(scope, gate, up, self.activation)
        return self._expert(scope, product, index, "down", inner, width)

    def _expert(
        self, scope: Scope, x: Value, index: Value, role: str, inner: int, outer: int
    ) -> Value:
        rows = rows_for(scope, role, x, role)
        matmul = ops.ExpertMatMul(self.experts, inner, outer)
        y = scope.add(matmul, rows, index, name=role, weights={"weight": role})
        if not self.biased:
            return y
        bias, weights = ops.ExpertBias(self.experts, outer), {"bias": f"{role}_bias"}
        return scope.add(bias, y, index, name=f"{role}.biased", weights=weights)

    def _shared_output(self, scope: Scope, x: Value) -> Value:
        """Return the shared expert's output, multiplied by its factor."""
        roles = {role: f"shared_{role}" for role in self.shared.weight_shapes()}
        y = scope.add(self.shared, x, name="shared", weights=roles)
        if not self.shared_factor:
            return y
        factor = linear(scope, x, "shared_factor", self.width, 1)
        factor = scope.add(ops.Activation("sigmoid"), factor, name="shared_factor.sigmoid")
        return scope.add(ops.ScaleRows(), y, factor, name="shared.scaled")
