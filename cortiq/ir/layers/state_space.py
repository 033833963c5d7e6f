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
    output_biased : whether the last projection has a bias; `None` means as `biased`.
    normed : there is a norm at the end.
    gates_last : RMSNorm(y) · silu(z) in place of RMSNorm(y · silu(z)).
    scales : factors on z, x, B, C and Δ' as they leave the first projection (Falcon H1).
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
    output_biased: bool | None = None
    normed: bool = True
    gates_last: bool = False
    scales: tuple[Constant, ...] | None = None
    writes_slots = True
    relations = (
        divides("groups", "heads"),
        at_most("step_low", "step_high"),
        Relation(
            ("norm_groups", "heads", "head_dim"), "norm_groups divides the inner width",
            lambda m: m.inner % m.norm_groups == 0,
        ),
        Relation(
            ("normed", "gates_last"), "there is a norm that a gate could follow",
            lambda m: m.normed or not m.gates_last,
        ),
        Relation(
            ("scales",), "there are five scales, or none",
            lambda m: m.scales is None or len(m.scales) == 5,
        ),
    )  # fmt: skip

    @property
    def inner(self) -> int:
        """Width of x and z."""
        return self.heads * self.head_dim

    @property
    def ends_biased(self) -> bool:
        """Whether the last projection has a bias."""
        return self.biased if self.output_biased is None else self.output_biased

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
        with_bias = {"in": self.biased, "out": self.ends_biased}
        shapes |= {f"{r}_bias": shapes[r][:1] for r, there in with_bias.items() if there}
        if self.conv_biased:
            shapes["conv_bias"] = (self.conv_width,)
        own: dict[str, tuple[int, ...]] = {
            "conv": (self.conv_width, self.kernel),
            DECAYS[self.decay_form][0]: (self.heads,),
            "D": (self.heads,),
            "dt_bias": (self.heads,),
        }
        return shapes | own | ({"norm": (self.inner,)} if self.normed else {})

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
        given = self._parted(scope, joint)
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
        return linear(scope, y, "out", n, self.width, self.ends_biased)

    def _parted(self, scope: Scope, joint: Value) -> dict[str, Value]:
        """Return z, xBC and dt of the first projection, scaled."""
        n, shared = self.inner, self.groups * self.state_dim
        if self.scales is None:
            return parts(scope, joint, z=n, xBC=self.conv_width, dt=self.heads)
        widths = {"z": n, "x": n, "B": shared, "C": shared, "dt": self.heads}
        whole = parts(scope, joint, **{f"in.{name}": width for name, width in widths.items()})
        z, x, b, c, dt = (
            scope.add(ops.Scale(by), part, name=f"{name}.scaled")
            for by, (name, part) in zip(self.scales, whole.items(), strict=True)
        )
        return {"z": z, "xBC": scope.add(ops.Concat(), x, b, c, name="xBC"), "dt": dt}

    def _step(self, scope: Scope, dt: Value) -> tuple[Value, Value]:
        """Return Δ and α."""
        dt = scope.add(ops.Bias(self.heads), dt, name="dt.biased", weights={"bias": "dt_bias"})
        step = scope.add(ops.Activation("softplus"), dt, name="dt.softplus")
        if self.step_low is not None or self.step_high is not None:
            step = scope.add(ops.Clamp(self.step_low, self.step_high), step, name="dt.bounded")
        return step, decay(scope, step, self.heads, self.decay_form)

    def _normed(self, scope: Scope, y: Value, z: Value) -> Value:
        """Return RMSNorm(y · silu(z)), or what the options say."""
        z = scope.add(ops.Activation("silu"), z, name="z.activation")
        if self.gates_last:
            return scope.add(ops.Multiply(), self._norm(scope, y), z, name="gated")
        y = scope.add(ops.Multiply(), y, z, name="gated")
        return self._norm(scope, y) if self.normed else y

    def _norm(self, scope: Scope, y: Value) -> Value:
        """Return the norm of each part of y."""
        n, each = self.inner, self.inner // self.norm_groups
        if self.norm_groups == 1:
            return scope.add(ops.RMSNorm(n, self.eps), y, name="norm", weights={"weight": "norm"})
        y = shaped(scope, y, "gated.groups", self.norm_groups, each)
        y = scope.add(ops.RMSNorm(each, self.eps, weighted=False), y, name="norm.groups")
        y = shaped(scope, y, "norm.merged", n)
        return scope.add(ops.Gain(n), y, name="norm", weights={"weight": "norm"})
