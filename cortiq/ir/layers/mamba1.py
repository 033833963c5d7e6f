"""The first kind of selective state spaces, with a decay for every channel and row of its state."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.recurrent import DECAYS, DecayForm, convolved, decay, parts, shaped
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Epsilon, Function
from cortiq.ir.slots import Recurrent, Ring, Slot

NORMS = ("dt", "B", "C")
"""Rows that may be normed before they are used."""


@dataclass(frozen=True)
class Mamba1(Layer):
    """Mamba-1 mixer: f32[width] → f32[width], and the rows before their gate if asked for.

    [x' | z] = Linear(x); x = activation(conv(x')); [Δ' | B | C] = Linear(x), each normed if asked
    for; per channel Δ = softplus(Linear(Δ')), α[n] = exp(A[n] · Δ); S[n] ← α[n]·S[n] + B[n]·Δ·x;
    y = Σ S[n]·C[n] + D·x; Linear(y · silu(z)). Source: Gu and Dao (arXiv 2312.00752).

    Attributes
    ----------
    rank : width of Δ'.
    biased : the first and the last projection have biases.
    inner_norm : eps of RMSNorms of Δ', B and C, `weighted` or not (Jamba, Falcon Mamba).
    ungated : there is a second output, y f32[inner] (SambaY).
    decay_form : the file holds A as log(−A), "log", or as it is, "plain".
    """

    width: Count
    inner: Count
    state_dim: Count
    rank: Count
    kernel: Count
    activation: Function = "silu"
    biased: bool = False
    conv_biased: bool = True
    inner_norm: Epsilon | None = None
    weighted: bool = True
    decay_form: DecayForm = "log"
    ungated: bool = False
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width; the rows before their gate are another."""
        expect(inputs == (Type((self.width,)),), f"Mamba1 takes f32[{self.width}]: {inputs}")
        return (*inputs, Type((self.inner,))) if self.ungated else inputs

    def _widths(self) -> dict[str, int]:
        return {"dt": self.rank, "B": self.state_dim, "C": self.state_dim}

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, taps, decays, skip, norms."""
        shapes: dict[str, tuple[int, ...]] = {
            "in": (2 * self.inner, self.width),
            "out": (self.width, self.inner),
            "x": (self.rank + 2 * self.state_dim, self.inner),
            "dt": (self.inner, self.rank),
            "dt_bias": (self.inner,),
            "conv": (self.inner, self.kernel),
            DECAYS[self.decay_form][0]: (self.inner * self.state_dim,),
            "D": (self.inner,),
        }
        if self.biased:
            shapes |= {f"{role}_bias": shapes[role][:1] for role in ("in", "out")}
        if self.conv_biased:
            shapes["conv_bias"] = (self.inner,)
        if self.inner_norm is not None and self.weighted:
            shapes |= {f"{name}_norm": (width,) for name, width in self._widths().items()}
        return shapes

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the last kernel−1 rows of x', and a state of one column a channel."""
        state = Recurrent((self.inner, self.state_dim, 1))
        return {"ring": Ring(self.inner, self.kernel - 1), "state": state}

    def decompose(self, scope: Scope, *inputs: Value) -> Value | tuple[Value, ...]:
        """Write the primitives.

        Linear, CausalConv, Activation, Linear, RMSNorm, Linear, Concat, Gain, StateSpace, Gain,
        Add, Multiply, Linear.
        """
        n, states = self.inner, self.state_dim
        joint = linear(scope, inputs[0], "in", self.width, 2 * n, self.biased)
        given = parts(scope, joint, conv_in=n, z=n)
        x = convolved(scope, given["conv_in"], self.kernel, self.activation, self.conv_biased)
        own = linear(scope, x, "x", n, self.rank + 2 * states)
        found = parts(scope, own, **{f"own.{name}": w for name, w in self._widths().items()})
        dt, b, c = (
            self._normed(scope, y, name) for name, y in zip(NORMS, found.values(), strict=True)
        )
        dt = linear(scope, dt, "dt", self.rank, n, True)
        step = scope.add(ops.Activation("softplus"), dt, name="dt.softplus")
        b, c = (shaped(scope, y, f"{m}.groups", 1, states) for m, y in (("B", b), ("C", c)))
        space = ops.StateSpace(n, 1, states)
        alpha, heads = self._decays(scope, step), shaped(scope, x, "x.heads", n, 1)
        slots = {"state": "state"}
        y = scope.add(space, heads, b, c, alpha, step, name="space", slots=slots)
        y = shaped(scope, y, "space.merged", n)
        skip = scope.add(ops.Gain(n), x, name="skip", weights={"weight": "D"})
        whole = scope.add(ops.Add(), y, skip, name="space.skipped")
        z = scope.add(ops.Activation("silu"), given["z"], name="z.activation")
        y = scope.add(ops.Multiply(), whole, z, name="gated")
        y = linear(scope, y, "out", n, self.width, self.biased)
        return (y, whole) if self.ungated else y

    def _normed(self, scope: Scope, y: Value, name: str) -> Value:
        """Return Δ', B or C after its norm, if it has one."""
        if self.inner_norm is None:
            return y
        norm = ops.RMSNorm(y.type.shape[0], self.inner_norm, weighted=self.weighted)
        weights = {"weight": f"{name}_norm"} if self.weighted else {}
        return scope.add(norm, y, name=f"{name}.norm", weights=weights)

    def _decays(self, scope: Scope, step: Value) -> Value:
        """Return α f32[inner, states]: each channel's Δ beside itself, times A."""
        n, states = self.inner, self.state_dim
        column = shaped(scope, step, "dt.column", n, 1)
        rows = scope.add(ops.Concat(), *[column] * states, name="dt.rows")
        rows = shaped(scope, rows, "dt.all", n * states)
        return shaped(scope, decay(scope, rows, n * states, self.decay_form), "decays", n, states)
