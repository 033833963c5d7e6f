"""Mixers of the gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.errors import GraphError
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.recurrent import convolved, decay, gated_rows, parts, shaped, unit_rows
from cortiq.ir.op import Type, expect
from cortiq.ir.slots import Recurrent, Ring, Slot

DECAYS_PER = ("head", "value", "channel")


@dataclass(frozen=True)
class GatedDeltaNet(Layer):
    """Gated delta net: f32[width] → f32[width].

    [q | k | v] = activation(conv(Linear(x))), z, a, b = Linear(x); q and k are unit rows; per value
    head α = exp(−e^A_log · softplus(a + dt_bias)), β = σ(b); S ← α·S; S ← S + k((v − Sᵀk)·β)ᵀ;
    o = Sᵀq·key_dim^(−1/2); Linear(RMSNorm(o) · silu(z)). Value head h has the key of head
    h // (heads / key_heads). Source: Yang, Kautz and Hatamizadeh, 2024; Qwen3-Next.

    Attributes
    ----------
    grouped : two matrices `qkvz` and `ba` hold, for each key head in turn, its rows of q, k, v
        and z, and of b and a.
    """

    width: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    eps: float
    activation: str = "silu"
    grouped: bool = False
    writes_slots = True

    @property
    def keys(self) -> int:
        """Width of all keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all values."""
        return self.heads * self.value_dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keeps the width."""
        expect(inputs == (Type((self.width,)),), f"GatedDeltaNet takes f32[{self.width}]: {inputs}")
        fits = self.heads % self.key_heads == 0
        expect(fits, f"{self.key_heads} key heads for {self.heads} heads")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Projections, taps, decay, norm."""
        rows = {"qkv": 2 * self.keys + self.values, "z": self.values}
        rows |= {"a": self.heads, "b": self.heads}
        if self.grouped:
            rows = {"qkvz": 2 * self.keys + 2 * self.values, "ba": 2 * self.heads}
        shapes: dict[str, tuple[int, ...]] = {r: (n, self.width) for r, n in rows.items()}
        return shapes | {
            "conv": (2 * self.keys + self.values, self.kernel), "A_log": (self.heads,),
            "dt_bias": (self.heads,), "norm": (self.value_dim,), "out": (self.width, self.values),
        }  # fmt: skip

    def slot_kinds(self) -> dict[str, Slot]:
        """The last kernel−1 rows of [q | k | v], and what the keys so far map to."""
        ring = Ring(2 * self.keys + self.values, self.kernel - 1)
        return {"ring": ring, "state": Recurrent((self.heads, self.key_dim, self.value_dim))}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Linear, CausalConv, Activation, L2Norm, Scale, DeltaRule, RMSNorm, Multiply, Linear."""
        given = self._grouped(scope, *inputs) if self.grouped else self._separate(scope, *inputs)
        joint = convolved(scope, given["qkv"], self.kernel, self.activation)
        rows = parts(scope, joint, q=self.keys, k=self.keys, v=self.values)
        q, k = unit_rows(scope, rows["q"], rows["k"], self.key_heads, self.key_dim)
        v = shaped(scope, rows["v"], "v.heads", self.heads, self.value_dim)
        bias, weights = ops.Bias(self.heads), {"bias": "dt_bias"}
        step = scope.add(bias, given["a"], name="step.biased", weights=weights)
        alpha = decay(scope, step, ops.Gain(self.heads, form="negative_exp"))
        beta = scope.add(ops.Activation("sigmoid"), given["b"], name="beta")
        rule = ops.DeltaRule(self.heads, self.key_dim, self.value_dim, self.key_heads)
        slots = {"state": "state"}
        y = scope.add(rule, q, k, v, alpha, beta, name="rule", slots=slots)
        y = gated_rows(scope, y, given["z"], self.eps, "silu")
        return linear(scope, y, "out", self.values, self.width)

    def _separate(self, scope: Scope, x: Value) -> dict[str, Value]:
        rows = {r: s[0] for r, s in self.weight_shapes().items() if r in ("qkv", "z", "a", "b")}
        return {role: linear(scope, x, role, self.width, n) for role, n in rows.items()}

    def _grouped(self, scope: Scope, x: Value) -> dict[str, Value]:
        heads, each = self.key_heads, self.heads // self.key_heads
        values = each * self.value_dim
        joint = linear(scope, x, "qkvz", self.width, 2 * self.keys + 2 * self.values)
        wide = shaped(scope, joint, "qkvz.groups", heads, 2 * self.key_dim + 2 * values)
        own = {"q": self.key_dim, "k": self.key_dim, "v": values, "z": values}
        given = parts(scope, wide, **{f"{n}.group": width for n, width in own.items()})
        flat = {n: shaped(scope, given[f"{n}.group"], f"{n}.projected", heads * w)
                for n, w in own.items()}  # fmt: skip
        joint = linear(scope, x, "ba", self.width, 2 * self.heads)
        small = shaped(scope, joint, "ba.groups", heads, 2 * each)
        given = parts(scope, small, **{"b.group": each, "a.group": each})
        flat |= {n: shaped(scope, given[f"{n}.group"], f"{n}.projected", self.heads) for n in "ba"}
        qkv = scope.add(ops.Concat(), flat["q"], flat["k"], flat["v"], name="qkv")
        return {"qkv": qkv, "z": flat["z"], "a": flat["a"], "b": flat["b"]}


@dataclass(frozen=True)
class KDA(Layer):
    """Kimi delta attention, whose every key channel decays by itself: f32[width] → f32[width].

    [q | k | v] = activation(conv([Linear(x) | Linear(x) | Linear(x)])); q and k are unit rows;
    f = Linear(Linear(x)) + dt_bias; α = exp(−e^A_log · softplus(f)), a number a channel; β =
    σ(Linear(x)); the delta rule; Linear(RMSNorm(o) · σ(Linear(Linear(x)))).
    Source: Kimi Linear (arXiv 2510.26692), section 3.

    Attributes
    ----------
    decay_rank : width between the two matrices `f_a` and `f_b`.
    gate_rank : the same of `g_a` and `g_b`; 0 for one matrix `g`.
    decay_per : what A_log has a number for: "head", "value" (a channel of any head) or "channel".
    decay_bound : α = exp(bound · σ(e^A_log · f)) instead, the bound negative.
    """

    width: int
    heads: int
    key_dim: int
    value_dim: int
    kernel: int
    eps: float
    decay_rank: int
    gate_rank: int = 0
    activation: str = "silu"
    decay_per: str = "head"
    decay_bound: float | None = None
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keeps the width."""
        expect(inputs == (Type((self.width,)),), f"KDA takes f32[{self.width}]: {inputs}")
        return inputs

    def __post_init__(self) -> None:
        if self.decay_per not in DECAYS_PER:
            hint = f"one of {', '.join(DECAYS_PER)}"
            raise GraphError(f"a decay per {self.decay_per!r}", where="KDA", hint=hint)

    @property
    def _rows(self) -> dict[str, int]:
        return {
            "q": self.heads * self.key_dim, "k": self.heads * self.key_dim,
            "v": self.heads * self.value_dim,
        }  # fmt: skip

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Projections, taps, decay, gate, norm."""
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        shapes: dict[str, tuple[int, ...]] = {r: (n, self.width) for r, n in self._rows.items()}
        logs = {"head": self.heads, "value": self.key_dim, "channel": keys}
        shapes |= {
            "conv": (2 * keys + values, self.kernel), "f_a": (self.decay_rank, self.width),
            "f_b": (keys, self.decay_rank), "b": (self.heads, self.width),
            "A_log": (logs[self.decay_per],), "dt_bias": (keys,), "norm": (self.value_dim,),
            "o": (self.width, values),
        }  # fmt: skip
        if not self.gate_rank:
            return shapes | {"g": (values, self.width)}
        return shapes | {"g_a": (self.gate_rank, self.width), "g_b": (values, self.gate_rank)}

    def slot_kinds(self) -> dict[str, Slot]:
        """The last kernel−1 rows of [q | k | v], and what the keys so far map to."""
        ring = Ring(sum(self._rows.values()), self.kernel - 1)
        return {"ring": ring, "state": Recurrent((self.heads, self.key_dim, self.value_dim))}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Linear, Concat, CausalConv, Activation, L2Norm, DeltaRule, RMSNorm, Multiply, Linear."""
        (x,) = inputs
        rows = self._rows
        projected = [linear(scope, x, role, self.width, n) for role, n in rows.items()]
        joint = scope.add(ops.Concat(), *projected, name="qkv")
        joint = convolved(scope, joint, self.kernel, self.activation)
        own = parts(scope, joint, **{f"{role}.convolved": n for role, n in rows.items()})
        q, k, v = own.values()
        q, k = unit_rows(scope, q, k, self.heads, self.key_dim)
        v = shaped(scope, v, "v.heads", self.heads, self.value_dim)
        beta = linear(scope, x, "b", self.width, self.heads)
        beta = scope.add(ops.Activation("sigmoid"), beta, name="beta")
        rule = ops.DeltaRule(self.heads, self.key_dim, self.value_dim)
        alpha, slots = self._decay(scope, x), {"state": "state"}
        y = scope.add(rule, q, k, v, alpha, beta, name="rule", slots=slots)
        y = gated_rows(scope, y, self._gate(scope, x), self.eps, "sigmoid")
        return linear(scope, y, "o", rows["v"], self.width)

    def _decay(self, scope: Scope, x: Value) -> Value:
        """α, a number a channel of every head."""
        keys = self.heads * self.key_dim
        f = linear(scope, x, "f_a", self.width, self.decay_rank)
        f = linear(scope, f, "f_b", self.decay_rank, keys)
        f = scope.add(ops.Bias(keys), f, name="f", weights={"bias": "dt_bias"})
        if self.decay_per != "channel":
            f = shaped(scope, f, "f.heads", self.heads, self.key_dim)
        (count,), per = self.weight_shapes()["A_log"], self.decay_per
        form = "negative_exp" if self.decay_bound is None else "exp"
        gain = ops.Gain(count, "head" if per == "head" else "value", form)
        if self.decay_bound is None:
            alpha = decay(scope, f, gain)
        else:
            f = scope.add(gain, f, name="f.scaled", weights={"weight": "A_log"})
            f = scope.add(ops.Activation("sigmoid"), f, name="f.sigmoid")
            f = scope.add(ops.Scale(self.decay_bound), f, name="log_decay")
            alpha = scope.add(ops.Activation("exp"), f, name="decay")
        return shaped(scope, alpha, "decay.heads", self.heads, self.key_dim)

    def _gate(self, scope: Scope, x: Value) -> Value:
        values = self.heads * self.value_dim
        if not self.gate_rank:
            return linear(scope, x, "g", self.width, values)
        g = linear(scope, x, "g_a", self.width, self.gate_rank)
        return linear(scope, g, "g_b", self.gate_rank, values)
