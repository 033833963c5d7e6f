"""RWKV-7: time mixing with a delta rule that decays by channel, and channel mixing."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Size
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.moments import ones
from cortiq.ir.layers.recurrent import shaped
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Epsilon
from cortiq.ir.slots import Recurrent, Slot
from cortiq.numerics.column_order import ColumnOrder

FASTEST = -0.6065306597126334
"""−e^(−½): the logarithm of the fastest decay of a channel."""
MIXED = ("r", "w", "k", "v", "a", "g")
"""Rows of time mixing, each from another mixture of a row and the one before."""


def shift_state(width: int) -> Recurrent:
    """Return the slot of `shifted`: the last row, and the one before it."""
    return Recurrent((1, 2, width))


def shifted(scope: Scope, x: Value, slot: str) -> Value:
    """Write the row before x, less x; the row before the first is 0.

    A delta rule whose state has two rows writes x into the first and moves what was there into the
    second, which is read.
    """
    (width,) = x.type.shape
    one = ones(scope, x, 1, "shift.one")
    none = scope.add(ops.Scale(0.0), one, name="shift.none")
    pairs = {"old": (none, one), "new": (one, none), "neither": (none, none)}
    rows = {
        name: shaped(
            scope, scope.add(ops.Concat(), *pair, name=f"shift.{name}.pair"), f"shift.{name}", 1, 2
        )
        for name, pair in pairs.items()
    }
    moved = scope.add(ops.Scale(-1.0), rows["old"], name="shift.moved")
    v = shaped(scope, x, "shift.row", 1, width)
    before = scope.add(
        ops.DiagonalDeltaRule(1, 2, width),
        rows["old"], rows["new"], v, rows["neither"], rows["new"], moved,
        name="shift.rule", slots={"state": slot},
    )  # fmt: skip
    return _difference(scope, shaped(scope, before, "shift.before", width), x, "shift.difference")


def _difference(scope: Scope, a: Value, b: Value, name: str) -> Value:
    less = scope.add(ops.Scale(-1.0), b, name=f"{name}.less")
    return scope.add(ops.Add(), a, less, name=name)


def _mixed(scope: Scope, x: Value, change: Value, role: str, width: int) -> Value:
    """Write x + μ·change, μ the weight `role`."""
    part = scope.add(ops.Gain(width), change, name=f"{role}.part", weights={"weight": role})
    return scope.add(ops.Add(), x, part, name=role)


@dataclass(frozen=True)
class RWKV7TimeMix(Layer):
    """Time mixing of RWKV-7: f32[width], after the first layer f32[width] of it too → f32[width].

    x_n = x + μ_n·(x before − x) for n = r, w, k, v, a, g; r, k, v = Linear(x_n);
    w = exp(−e^(−½)·σ(Linear(tanh(Linear(x_w))))); a = σ(Linear(Linear(x_a))); κ = unit(k·k_k);
    k ← k·(1 + (a − 1)·k_a); v ← v + (v₁ − v)·σ(Linear(Linear(x_v))), v₁ that of the first layer;
    S ← diag(w)·S − (κ·a)·(Sᵀκ)ᵀ + k·vᵀ; o = GroupNorm(Sᵀr) + (Σ r·k·r_k)·v a head;
    Linear(o · Linear(σ(Linear(x_g)))). Source: Peng et al. (arXiv 2503.14456).

    Attributes
    ----------
    value_rank : 0 for the first layer, which gives its v as a second output.
    eps : of the norm of a head's output; key_eps : of unit keys.
    """

    width: Count
    heads: Count
    head_dim: Count
    decay_rank: Count
    rate_rank: Count
    gate_rank: Count
    value_rank: Size
    eps: Epsilon
    key_eps: Epsilon
    writes_slots = True

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width; the first layer gives its values too."""
        row, values = Type((self.width,)), Type((self.inner,))
        wanted = (row, values) if self.value_rank else (row,)
        expect(inputs == wanted, f"RWKV7TimeMix takes {wanted}: {inputs}")
        return (row,) if self.value_rank else (row, values)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare mixtures, projections, low-rank matrices, keys' factors, norm."""
        inner, width = self.inner, self.width
        shapes: dict[str, tuple[int, ...]] = {f"x_{name}": (width,) for name in MIXED}
        shapes |= dict.fromkeys("rkv", (inner, width)) | {"o": (width, inner)}
        ranks = {"w": self.decay_rank, "a": self.rate_rank, "v": self.value_rank}
        for name, rank in (ranks | {"g": self.gate_rank}).items():
            if rank:
                shapes |= {f"{name}_down": (rank, width), f"{name}_up": (inner, rank)}
        shapes |= {f"{name}_up_bias": (inner,) for name, rank in ranks.items() if rank}
        return shapes | dict.fromkeys(("k_k", "k_a", "r_k", "norm", "norm_bias"), (inner,))

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the last rows, and the map from keys to values."""
        state = Recurrent((self.heads, self.head_dim, self.head_dim))
        return {"time_shift": shift_state(self.width), "state": state}

    def decompose(self, scope: Scope, *inputs: Value) -> Value | tuple[Value, ...]:
        """Write the primitives.

        DiagonalDeltaRule (the row before), Scale, Add, Gain, Add (six times), Linear ×3, two
        Linear for each of w, a, v and g, Activation, Gain, L2Norm, DiagonalDeltaRule, [Permute,
        CombineExperts, ScaleRows, Add] (means), RMSNorm, Gain, Bias, Multiply, Linear.
        """
        x, n = inputs[0], self.inner
        change = shifted(scope, x, "time_shift")
        given = {m: _mixed(scope, x, change, f"x_{m}", self.width) for m in MIXED}
        r, k, v = (linear(scope, given[m], m, self.width, n) for m in "rkv")
        decay = self._low_rank(scope, given["w"], "w", self.decay_rank, "tanh")
        decay = scope.add(ops.Activation("sigmoid"), decay, name="w.sigmoid")
        decay = scope.add(ops.Scale(FASTEST), decay, name="w.log")
        decay = scope.add(ops.Activation("exp"), decay, name="w.decay")
        rate = self._low_rank(scope, given["a"], "a", self.rate_rank)
        rate = scope.add(ops.Activation("sigmoid"), rate, name="a.rate")
        if self.value_rank:
            share = self._low_rank(scope, given["v"], "v", self.value_rank)
            share = scope.add(ops.Activation("sigmoid"), share, name="v.share")
            more = _difference(scope, inputs[1], v, "v.more")
            more = scope.add(ops.Multiply(), more, share, name="v.shared")
            v = scope.add(ops.Add(), v, more, name="v.mixed")
        y = self._attended(scope, r, k, v, decay, rate)
        gate = linear(scope, given["g"], "g_down", self.width, self.gate_rank)
        gate = scope.add(ops.Activation("sigmoid"), gate, name="g.sigmoid")
        gate = linear(scope, gate, "g_up", self.gate_rank, n)
        y = scope.add(ops.Multiply(), y, gate, name="gated")
        y = linear(scope, y, "o", n, self.width)
        return y if self.value_rank else (y, v)

    def _low_rank(
        self, scope: Scope, x: Value, name: str, rank: int, function: str | None = None
    ) -> Value:
        y = linear(scope, x, f"{name}_down", self.width, rank)
        if function:
            y = scope.add(ops.Activation(function), y, name=f"{name}.{function}")
        return linear(scope, y, f"{name}_up", rank, self.inner, True)

    def _attended(
        self, scope: Scope, r: Value, k: Value, v: Value, decay: Value, rate: Value
    ) -> Value:
        """Write the delta rule, the norm of its heads, and each row's own value."""
        n = self.inner
        kappa = scope.add(ops.Gain(n), k, name="kappa.scaled", weights={"weight": "k_k"})
        unit = ops.L2Norm(self.head_dim, self.key_eps)
        kappa = scope.add(unit, self._heads(scope, kappa, "kappa.heads"), name="kappa")
        factor = scope.add(ops.Shift(-1.0), rate, name="k.rate")
        factor = scope.add(ops.Gain(n), factor, name="k.part", weights={"weight": "k_a"})
        factor = scope.add(ops.Shift(1.0), factor, name="k.factor")
        k = scope.add(ops.Multiply(), k, factor, name="k.written")
        rows = {"r": r, "k": k, "v": v, "w": decay, "a": rate}
        rows = {name: self._heads(scope, row, f"{name}.heads") for name, row in rows.items()}
        removed = scope.add(ops.Multiply(), kappa, rows["a"], name="removed")
        rule = ops.DiagonalDeltaRule(self.heads, self.head_dim, self.head_dim)
        y = scope.add(
            rule, rows["r"], rows["k"], rows["v"], rows["w"], kappa, removed,
            name="rule", slots={"state": "state"},
        )  # fmt: skip
        y = self._normed(scope, y)
        own = scope.add(ops.Multiply(), r, k, name="own.products")
        own = scope.add(ops.Gain(n), own, name="own.scaled", weights={"weight": "r_k"})
        total = self._head_sums(scope, own, "own")
        own = scope.add(ops.ScaleRows(), rows["v"], total, name="own.value")
        return scope.add(ops.Add(), y, shaped(scope, own, "own.merged", n), name="attended")

    def _heads(self, scope: Scope, x: Value, name: str) -> Value:
        return shaped(scope, x, name, self.heads, self.head_dim)

    def _head_sums(self, scope: Scope, x: Value, name: str) -> Value:
        """Write the sum of each head's values in order: f32[inner] → f32[heads, 1]."""
        places = (h * self.head_dim + d for d in range(self.head_dim) for h in range(self.heads))
        turned = scope.add(ops.Permute(ColumnOrder.of(tuple(places))), x, name=f"{name}.turned")
        turned = shaped(scope, turned, f"{name}.columns", self.head_dim, self.heads)
        weights = ones(scope, x, self.head_dim, f"{name}.sum")
        total = scope.add(ops.CombineExperts(), weights, turned, name=f"{name}.total")
        return shaped(scope, total, f"{name}.sums", self.heads, 1)

    def _normed(self, scope: Scope, y: Value) -> Value:
        """Write the LayerNorm of every head, then a gain and a bias a channel."""
        n = self.inner
        flat = shaped(scope, y, "norm.flat", n)
        total = self._head_sums(scope, flat, "norm")
        less = scope.add(ops.Scale(-1.0 / self.head_dim), total, name="norm.less")
        whole = self._heads(scope, ones(scope, flat, n, "norm.whole"), "norm.whole.heads")
        less = scope.add(ops.ScaleRows(), whole, less, name="norm.means")
        y = scope.add(ops.Add(), y, less, name="norm.centred")
        norm = ops.RMSNorm(self.head_dim, self.eps, weighted=False)
        y = shaped(scope, scope.add(norm, y, name="norm.unit"), "norm.merged", n)
        y = scope.add(ops.Gain(n), y, name="norm.scaled", weights={"weight": "norm"})
        return scope.add(ops.Bias(n), y, name="norm.biased", weights={"bias": "norm_bias"})


@dataclass(frozen=True)
class RWKV7ChannelMix(Layer):
    """Channel mixing of RWKV-7: f32[width] → f32[width].

    Linear(max(Linear(x + μ·(x before − x)), 0)²).
    """

    width: Count
    inner: Count
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        expect(inputs == (Type((self.width,)),), f"RWKV7ChannelMix takes f32[{self.width}]")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the mixture and two matrices."""
        up, down = (self.inner, self.width), (self.width, self.inner)
        return {"x_k": (self.width,), "up": up, "down": down}

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the last rows."""
        return {"channel_shift": shift_state(self.width)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write DiagonalDeltaRule (the row before), Gain, Add, Linear, Activation, Linear."""
        x = inputs[0]
        x = _mixed(scope, x, shifted(scope, x, "channel_shift"), "x_k", self.width)
        y = linear(scope, x, "up", self.width, self.inner)
        y = scope.add(ops.Activation("relu2"), y, name="activation")
        return linear(scope, y, "down", self.inner, self.width)
