"""Feed-forward layers, gated and plain."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.moments import above
from cortiq.ir.op import Described, Type, expect_last
from cortiq.ir.options import Cap, Constant, Epsilon, Function, Positive


@dataclass(frozen=True)
class Gating(Described):
    """The combination of a gate row g and a row u into an MLP's inner row: a(g) · u, with options.

    Attributes
    ----------
    activation : a, unless `steepness` or `gate_cap` define it.
    limit : g is first bounded above by it, u to ±limit (clamped SwiGLU).
    late : a(g) is bounded in place of g.
    steepness : a(g) = g · σ(steepness · g).
    gate_cap : a(g) = cap · tanh(g / cap) · σ(g).
    up_cap : u becomes cap · tanh(u / cap).
    up_shift : added to u at the end.
    """

    activation: Function = "silu"
    limit: Positive | None = None
    steepness: Constant | None = None
    gate_cap: Cap | None = None
    up_cap: Cap | None = None
    up_shift: Constant = 0.0
    late: bool = False


Activation = Function | Gating
"""An activation of the catalogue, or a way of joining with more options."""


def join(scope: Scope, gate: Value, up: Value, how: Activation) -> Value:
    """Return the inner row made from a gate and the row it multiplies."""
    gating = Gating(how) if isinstance(how, str) else how
    if gating.limit is not None and not gating.late:
        gate = scope.add(ops.Clamp(None, gating.limit), gate, name="gate.bounded")
    if gating.limit is not None:
        up = scope.add(ops.Clamp(-gating.limit, gating.limit), up, name="up.bounded")
    gate = _activated(scope, gate, gating)
    if gating.limit is not None and gating.late:
        gate = scope.add(ops.Clamp(None, gating.limit), gate, name="activation.bounded")
    if gating.up_cap is not None:
        up = scope.add(ops.SoftCap(gating.up_cap), up, name="up.capped")
    if gating.up_shift:
        up = scope.add(ops.Shift(gating.up_shift), up, name="up.shifted")
    return scope.add(ops.Multiply(), gate, up, name="product")


def _activated(scope: Scope, gate: Value, gating: Gating) -> Value:
    if gating.steepness is None and gating.gate_cap is None:
        return scope.add(ops.Activation(gating.activation), gate, name="activation")
    factor, kept = gate, gate
    if gating.steepness is not None:
        factor = scope.add(ops.Scale(gating.steepness), gate, name="gate.scaled")
    if gating.gate_cap is not None:
        kept = scope.add(ops.SoftCap(gating.gate_cap), gate, name="gate.capped")
    factor = scope.add(ops.Activation("sigmoid"), factor, name="gate.sigmoid")
    return scope.add(ops.Multiply(), kept, factor, name="activation")


def halves(scope: Scope, rows: Value, inner: int) -> tuple[Value, Value]:
    """Split rows that interleave gate and up."""
    gate, up = (
        scope.add(ops.Slice(first, 2 * inner, 2), rows, name=name)
        for first, name in enumerate(("gate", "up"))
    )
    return gate, up


@dataclass(frozen=True)
class GatedMLP(Layer):
    """down(activation(gate(x)) · up(x)): f32[width] → f32[width].

    Attributes
    ----------
    activation : name of a function, or a `Gating`.
    interleaved : one matrix `gate_up` holds the rows of gate and up in turns.
    above : of the gate's row only what exceeds its mean by so many deviations is kept, less that.
    inner_norm : eps of a norm of the product, before the last Linear (BitNet).
    """

    width: Count
    inner: Count
    activation: Activation = "silu"
    biased: bool = False
    interleaved: bool = False
    above: Constant | None = None
    inner_norm: Epsilon | None = None

    def options(self) -> frozenset[str]:
        """Return the function, or `gating`, and what there is beyond the plain form."""
        used = {
            "above": self.above is not None, "interleaved": self.interleaved,
            "inner_norm": self.inner_norm is not None,
        }  # fmt: skip
        how = self.activation if isinstance(self.activation, str) else "gating"
        return frozenset({how, *(name for name, there in used.items() if there)})

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        (x,) = inputs
        expect_last(self, x, self.width)
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare three matrices, or two, and their biases."""
        wide, narrow = (self.inner, self.width), (self.width, self.inner)
        shapes: dict[str, tuple[int, ...]] = {"gate": wide, "up": wide, "down": narrow}
        if self.interleaved:
            shapes = {"gate_up": (2 * self.inner, self.width), "down": narrow}
        if self.biased:
            shapes |= {f"{role}_bias": shape[:1] for role, shape in shapes.items()}
        return shapes | ({} if self.inner_norm is None else {"inner_norm": (self.inner,)})

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, Linear, Activation, Multiply, [RMSNorm], Linear."""
        (x,) = inputs
        if self.interleaved:
            both = linear(scope, x, "gate_up", self.width, 2 * self.inner, self.biased)
            gate, up = halves(scope, both, self.inner)
        else:
            gate = linear(scope, x, "gate", self.width, self.inner, self.biased)
            up = linear(scope, x, "up", self.width, self.inner, self.biased)
        if self.above is not None:
            gate = above(scope, gate, self.above, "gate.above")
        product = join(scope, gate, up, self.activation)
        if self.inner_norm is not None:
            norm, weights = ops.RMSNorm(self.inner, self.inner_norm), {"weight": "inner_norm"}
            product = scope.add(norm, product, name="product.norm", weights=weights)
        return linear(scope, product, "down", self.inner, self.width, self.biased)


@dataclass(frozen=True)
class MLP(Layer):
    """down(activation(up(x))): f32[width] → f32[width]."""

    width: Count
    inner: Count
    activation: Function = "gelu_tanh"
    biased: bool = False

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        (x,) = inputs
        expect_last(self, x, self.width)
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare two matrices and their biases."""
        shapes: dict[str, tuple[int, ...]] = {
            "up": (self.inner, self.width),
            "down": (self.width, self.inner),
        }
        if self.biased:
            shapes |= {f"{role}_bias": shape[:1] for role, shape in shapes.items()}
        return shapes

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, Activation, Linear."""
        up = linear(scope, inputs[0], "up", self.width, self.inner, self.biased)
        up = scope.add(ops.Activation(self.activation), up, name="activation")
        return linear(scope, up, "down", self.inner, self.width, self.biased)


@dataclass(frozen=True)
class XieluMLP(Layer):
    """down(xIELU(up(x))): f32[width] → f32[width].

    xIELU(u) = α⁺·max(u, 0)² + (β + α⁻)·(e^m − 1 − m) + β·u with m = min(u, 0), α = softplus of a
    learned number; files hold β too. Source: Huang (arXiv 2411.13010).
    """

    width: Count
    inner: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        (x,) = inputs
        expect_last(self, x, self.width)
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare two matrices, the two learned numbers, and β."""
        wide, narrow = (self.inner, self.width), (self.width, self.inner)
        return {"up": wide, "down": narrow, **dict.fromkeys(("alpha_p", "alpha_n", "beta"), (1,))}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, Activation, Gain, Clamp, Activation, Shift, Scale, Add, Linear."""
        up = linear(scope, inputs[0], "up", self.width, self.inner)
        y = scope.add(ops.Activation("relu2"), up, name="square")
        y = self._gained(scope, y, "alpha_p")
        low = scope.add(ops.Clamp(None, 0.0), up, name="low")
        bent = scope.add(ops.Activation("exp"), low, name="low.exp")
        bent = scope.add(ops.Shift(-1.0), bent, name="low.expm1")
        less = scope.add(ops.Scale(-1.0), low, name="low.negated")
        bent = scope.add(ops.Add(), bent, less, name="bent")
        part = self._gained(scope, bent, "alpha_n")
        y = scope.add(ops.Add(), y, part, name="curves")
        line = scope.add(ops.Add(), bent, up, name="line")
        line = self._gained(scope, line, "beta", "plain")
        y = scope.add(ops.Add(), y, line, name="activation")
        return linear(scope, y, "down", self.inner, self.width)

    def _gained(self, scope: Scope, x: Value, role: str, form: str = "softplus") -> Value:
        """Return x times a number of the file, in a form of `Gain`."""
        return scope.add(ops.Gain(1, "all", form), x, name=role, weights={"weight": role})
