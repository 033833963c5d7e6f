"""Selective state spaces."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation, at_most, divides
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.recurrent import (
    DECAYS,
    DecayForm,
    convolved,
    decay,
    parts,
    shaped,
)
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Constant, Epsilon, Function
from cortiq.ir.slots import Recurrent, Ring, Slot


@dataclass(frozen=True)
class Mamba2(Layer):
    """Mamba-2 mixer: f32[width] → f32[width].

    [z | xBC | Δ'] = Linear(x); [x | B | C] = activation(conv(xBC)); per head Δ = softplus(Δ' +
    dt_bias) within `step_low` and `step_high`, α = exp(A · Δ); S ← α·S + B(Δ·x)ᵀ;
    y = Sᵀ·C + D·x; Linear(RMSNorm(y · silu(z))), the norm over each of `norm_groups` parts.
    Head h has B and C of group h // (heads / groups). Source: Dao and Gu (arXiv 2405.21060).

    Attributes
    ----------
    decay_form : the file holds A as log(−A), "log", or as it is, "plain".
    """

    width: Count
    heads: Count
    head_dim: Count
    state_dim: Count
    groups: Count
    kernel: Count
    eps: Epsilon
    activation: Function = "silu"
    norm_groups: Count = 1
    biased: bool = False
    conv_biased: bool = True
    step_low: Constant | None = None
    step_high: Constant | None = None
    decay_form: DecayForm = "log"
    writes_slots = True
    relations = (
        divides("groups", "heads"),
        at_most("step_low", "step_high"),
        Relation(
            ("norm_groups", "heads", "head_dim"), "norm_groups divides the inner width",
            lambda m: m.inner % m.norm_groups == 0,
        ),
    )  # fmt: skip

    @property
    def inner(self) -> int:
        """Width of x and z."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Width of [x | B | C]."""
        return self.inner + 2 * self.groups * self.state_dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        expect(inputs == (Type((self.width,)),), f"Mamba2 takes f32[{self.width}]: {inputs}")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, taps, decay, skip, norm."""
        rows = self.inner + self.conv_width + self.heads
        shapes: dict[str, tuple[int, ...]] = {
            "in": (rows, self.width),
            "out": (self.width, self.inner),
        }
        if self.biased:
            shapes |= {f"{role}_bias": shape[:1] for role, shape in shapes.items()}
        if self.conv_biased:
            shapes["conv_bias"] = (self.conv_width,)
        return shapes | {
            "conv": (self.conv_width, self.kernel),
            DECAYS[self.decay_form][0]: (self.heads,),
            "D": (self.heads,),
            "dt_bias": (self.heads,),
            "norm": (self.inner,),
        }

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the last kernel−1 rows of [x | B | C], and the state."""
        state = Recurrent((self.heads, self.state_dim, self.head_dim))
        return {"ring": Ring(self.conv_width, self.kernel - 1), "state": state}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear, CausalConv, Activation, StateSpace, Gain, Add, Multiply, RMSNorm, Linear.
        """
        n, shared = self.inner, self.groups * self.state_dim
        rows = n + self.conv_width + self.heads
        joint = linear(scope, inputs[0], "in", self.width, rows, self.biased)
        given = parts(scope, joint, z=n, xBC=self.conv_width, dt=self.heads)
        mixed = convolved(scope, given["xBC"], self.kernel, self.activation, self.conv_biased)
        own = parts(scope, mixed, x=n, B=shared, C=shared)
        x = shaped(scope, own["x"], "x.heads", self.heads, self.head_dim)
        b, c = (shaped(scope, own[m], f"{m}.groups", self.groups, self.state_dim) for m in "BC")
        step, alpha = self._step(scope, given["dt"])
        space = ops.StateSpace(self.heads, self.head_dim, self.state_dim, self.groups)
        slots = {"state": "state"}
        y = scope.add(space, x, b, c, alpha, step, name="space", slots=slots)
        skip = ops.Gain(self.heads, per="head")
        skip_value = scope.add(skip, x, name="skip", weights={"weight": "D"})
        y = scope.add(ops.Add(), y, skip_value, name="space.skipped")
        y = self._normed(scope, shaped(scope, y, "space.merged", n), given["z"])
        return linear(scope, y, "out", n, self.width, self.biased)

    def _step(self, scope: Scope, dt: Value) -> tuple[Value, Value]:
        """Return Δ and α."""
        dt = scope.add(ops.Bias(self.heads), dt, name="dt.biased", weights={"bias": "dt_bias"})
        step = scope.add(ops.Activation("softplus"), dt, name="dt.softplus")
        if self.step_low is not None or self.step_high is not None:
            step = scope.add(ops.Clamp(self.step_low, self.step_high), step, name="dt.bounded")
        return step, decay(scope, step, self.heads, self.decay_form)

    def _normed(self, scope: Scope, y: Value, z: Value) -> Value:
        """Return RMSNorm(y · silu(z))."""
        n, each = self.inner, self.inner // self.norm_groups
        z = scope.add(ops.Activation("silu"), z, name="z.activation")
        y = scope.add(ops.Multiply(), y, z, name="gated")
        if self.norm_groups == 1:
            return scope.add(ops.RMSNorm(n, self.eps), y, name="norm", weights={"weight": "norm"})
        y = shaped(scope, y, "gated.groups", self.norm_groups, each)
        y = scope.add(ops.RMSNorm(each, self.eps, weighted=False), y, name="norm.groups")
        y = shaped(scope, y, "norm.merged", n)
        return scope.add(ops.Gain(n), y, name="norm", weights={"weight": "norm"})
