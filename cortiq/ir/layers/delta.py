"""Mixers of the gated delta rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import Count, OneOf, Relation, Size, divides
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.recurrent import (
    DECAYS,
    DecayForm,
    convolved,
    decay,
    gated_rows,
    parts,
    shaped,
    unit_rows,
)
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Constant, Epsilon, Function, Negative
from cortiq.ir.slots import Recurrent, Ring, Slot

DECAYS_PER = ("head", "value", "channel")
SIZES: Mapping[str, str] = {"log": "exp", "plain": "magnitude"}
"""Form of the gain −A, by the form of a file's decays."""
GROUPS: Mapping[str, tuple[str, ...]] = {"qkvz": ("qkv", "z"), "ba": ("b", "a")}
"""Matrices that may hold several, grouped by key head."""


@dataclass(frozen=True)
class GatedDeltaNet(Layer):
    """Gated delta net: f32[width] → f32[width].

    [q | k | v] = activation(conv(Linear(x))), z, a, b = Linear(x); q and k are unit rows; per value
    head α = exp(A · softplus(a + dt_bias)), β = rate·σ(b); S ← α·S; S ← S + k((v − Sᵀk)·β)ᵀ;
    o = Sᵀq·key_dim^(−1/2); Linear(RMSNorm(o) · gate(z)). Value head h has the key of head
    h // (heads / key_heads). Source: Yang, Kautz and Hatamizadeh, 2024; Qwen3-Next.

    Attributes
    ----------
    grouped : matrices that hold, for each key head in turn, its rows of q, k, v and z ("qkvz"), or
        of b and a ("ba").
    tiled : value head h has the key of head h mod key_heads instead.
    decay_form : the file holds A as log(−A), "log", or as it is, "plain".
    rate : factor of β; with 2 a state may lose more of a key's value than it has (OLMo Hybrid).
    """

    width: Count
    heads: Count
    key_heads: Count
    key_dim: Count
    value_dim: Count
    kernel: Count
    eps: Epsilon
    activation: Function = "silu"
    grouped: tuple[Annotated[str, OneOf(GROUPS)], ...] = ()
    tiled: bool = False
    decay_form: DecayForm = "log"
    rate: Constant = 1.0
    gate: Function = "silu"
    writes_slots = True
    relations = (
        divides("key_heads", "heads"),
        Relation(
            ("grouped",), "no group is named twice",
            lambda net: len(set(net.grouped)) == len(net.grouped),
        ),
    )  # fmt: skip

    @property
    def keys(self) -> int:
        """Width of all keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all values."""
        return self.heads * self.value_dim

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        expect(inputs == (Type((self.width,)),), f"GatedDeltaNet takes f32[{self.width}]: {inputs}")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, taps, decay, norm."""
        rows = {"qkv": 2 * self.keys + self.values, "z": self.values}
        rows |= {"a": self.heads, "b": self.heads}
        for joint in self.grouped:
            rows[joint] = sum(rows.pop(role) for role in GROUPS[joint])
        shapes: dict[str, tuple[int, ...]] = {r: (n, self.width) for r, n in rows.items()}
        decays = DECAYS[self.decay_form][0]
        return shapes | {
            "conv": (2 * self.keys + self.values, self.kernel),
            decays: (self.heads,),
            "dt_bias": (self.heads,),
            "norm": (self.value_dim,),
            "out": (self.width, self.values),
        }

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the last kernel−1 rows of [q | k | v], and the delta rule's state."""
        ring = Ring(2 * self.keys + self.values, self.kernel - 1)
        return {"ring": ring, "state": Recurrent((self.heads, self.key_dim, self.value_dim))}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear, CausalConv, Activation, L2Norm, Scale, DeltaRule, RMSNorm, Multiply, Linear.
        """
        given = self._projected(scope, *inputs)
        joint = convolved(scope, given["qkv"], self.kernel, self.activation)
        rows = parts(scope, joint, q=self.keys, k=self.keys, v=self.values)
        q, k = unit_rows(scope, rows["q"], rows["k"], self.key_heads, self.key_dim)
        key_heads = self.key_heads
        if self.tiled and key_heads < self.heads:
            q, k = self._tiled(scope, q, "q"), self._tiled(scope, k, "k")
            key_heads = self.heads
        v = shaped(scope, rows["v"], "v.heads", self.heads, self.value_dim)
        step, bias = given["a"], {"bias": "dt_bias"}
        step = scope.add(ops.Bias(self.heads), step, name="step.biased", weights=bias)
        step = scope.add(ops.Activation("softplus"), step, name="step")
        alpha = decay(scope, step, self.heads, self.decay_form)
        beta = scope.add(ops.Activation("sigmoid"), given["b"], name="beta")
        if self.rate != 1.0:
            beta = scope.add(ops.Scale(self.rate), beta, name="beta.scaled")
        rule = ops.DeltaRule(self.heads, self.key_dim, self.value_dim, key_heads)
        y = scope.add(rule, q, k, v, alpha, beta, name="rule", slots={"state": "state"})
        y = gated_rows(scope, y, given["z"], self.eps, self.gate)
        return linear(scope, y, "out", self.values, self.width)

    def _tiled(self, scope: Scope, rows: Value, name: str) -> Value:
        """Return a row for every value head: the key heads' rows, repeated in turn."""
        flat = shaped(scope, rows, f"{name}.flat", self.keys)
        joint = scope.add(
            ops.Concat(), *[flat] * (self.heads // self.key_heads), name=f"{name}.all"
        )
        return shaped(scope, joint, f"{name}.tiled", self.heads, self.key_dim)

    def _projected(self, scope: Scope, x: Value) -> dict[str, Value]:
        """Return `qkv`, `z`, `a` and `b`, from separate matrices or grouped ones."""
        given = {
            role: linear(scope, x, role, self.width, shape[0])
            for role, shape in self.weight_shapes().items()
            if role in ("qkv", "z", "a", "b", *GROUPS)
        }
        each = self.heads // self.key_heads
        if "qkvz" in given:
            values = each * self.value_dim
            own = {"q": self.key_dim, "k": self.key_dim, "v": values, "z": values}
            flat = self._apart(scope, given.pop("qkvz"), "qkvz", own)
            qkv = scope.add(ops.Concat(), flat["q"], flat["k"], flat["v"], name="qkv")
            given |= {"qkv": qkv, "z": flat["z"]}
        if "ba" in given:
            given |= self._apart(scope, given.pop("ba"), "ba", {"b": each, "a": each})
        return given

    def _apart(
        self, scope: Scope, joint: Value, name: str, widths: Mapping[str, int]
    ) -> dict[str, Value]:
        """Split a grouped row into its parts, each over all key heads."""
        rows = shaped(scope, joint, f"{name}.groups", self.key_heads, sum(widths.values()))
        given = parts(scope, rows, **{f"{part}.group": width for part, width in widths.items()})
        return {
            part: shaped(scope, given[f"{part}.group"], f"{part}.projected", self.key_heads * width)
            for part, width in widths.items()
        }


@dataclass(frozen=True)
class KDA(Layer):
    """Kimi delta attention; every key channel has a decay of its own: f32[width] → f32[width].

    [q | k | v] = activation(conv([Linear(x) | Linear(x) | Linear(x)])); q and k are unit rows;
    f = Linear(Linear(x)) + dt_bias; α = exp(A · softplus(f)), a number a channel; β =
    σ(Linear(x)); the delta rule; Linear(RMSNorm(o) · σ(Linear(Linear(x)))).
    Source: Kimi Linear (arXiv 2510.26692), section 3.

    Attributes
    ----------
    decay_rank : width between the two matrices `f_a` and `f_b`; 0 for one matrix `f`.
    gate_rank : the same of `g_a` and `g_b`, or `g`.
    decay_per : A has a number for each "head", "value" (a channel of any head) or "channel".
    decay_bound : α = exp(bound · σ(−A · f)) instead, the bound negative.
    decay_form : the file holds A as log(−A), "log", or as it is, "plain".
    """

    width: Count
    heads: Count
    key_dim: Count
    value_dim: Count
    kernel: Count
    eps: Epsilon
    decay_rank: Size
    gate_rank: Size = 0
    activation: Function = "silu"
    decay_per: Annotated[str, OneOf(DECAYS_PER)] = "head"
    decay_bound: Negative | None = None
    decay_form: DecayForm = "log"
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the width."""
        expect(inputs == (Type((self.width,)),), f"KDA takes f32[{self.width}]: {inputs}")
        return inputs

    @property
    def _decays(self) -> str:
        return DECAYS[self.decay_form][0]

    @property
    def _rows(self) -> dict[str, int]:
        keys = self.heads * self.key_dim
        return {"q": keys, "k": keys, "v": self.heads * self.value_dim}

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare projections, taps, decay, gate, norm."""
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        shapes: dict[str, tuple[int, ...]] = {r: (n, self.width) for r, n in self._rows.items()}
        logs = {"head": self.heads, "value": self.key_dim, "channel": keys}
        shapes |= {
            "conv": (2 * keys + values, self.kernel),
            **self._matrices("f", self.decay_rank, keys),
            "b": (self.heads, self.width),
            self._decays: (logs[self.decay_per],),
            "dt_bias": (keys,),
            "norm": (self.value_dim,),
            "o": (self.width, values),
        }
        return shapes | self._matrices("g", self.gate_rank, values)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the last kernel−1 rows of [q | k | v], and the delta rule's state."""
        ring = Ring(sum(self._rows.values()), self.kernel - 1)
        return {"ring": ring, "state": Recurrent((self.heads, self.key_dim, self.value_dim))}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write the primitives.

        Linear, Concat, CausalConv, Activation, L2Norm, DeltaRule, RMSNorm, Multiply, Linear.
        """
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
        gate = self._through(scope, x, "g", self.gate_rank, rows["v"])
        y = gated_rows(scope, y, gate, self.eps, "sigmoid")
        return linear(scope, y, "o", rows["v"], self.width)

    def _decay(self, scope: Scope, x: Value) -> Value:
        """Return the decay α, one number for each channel of every head."""
        keys = self.heads * self.key_dim
        f = self._through(scope, x, "f", self.decay_rank, keys)
        f = scope.add(ops.Bias(keys), f, name="f.biased", weights={"bias": "dt_bias"})
        if self.decay_per != "channel":
            f = shaped(scope, f, "f.heads", self.heads, self.key_dim)
        (count,) = self.weight_shapes()[self._decays]
        per = "head" if self.decay_per == "head" else "value"
        if self.decay_bound is None:
            f = scope.add(ops.Activation("softplus"), f, name="step")
            alpha = decay(scope, f, count, self.decay_form, per)
        else:
            gain, weights = ops.Gain(count, per, SIZES[self.decay_form]), {"weight": self._decays}
            f = scope.add(gain, f, name="f.scaled", weights=weights)
            f = scope.add(ops.Activation("sigmoid"), f, name="f.sigmoid")
            f = scope.add(ops.Scale(self.decay_bound), f, name="log_decay")
            alpha = scope.add(ops.Activation("exp"), f, name="decay")
        return shaped(scope, alpha, "decay.heads", self.heads, self.key_dim)

    def _matrices(self, role: str, rank: int, rows: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one matrix, or of two with `rank` values between them."""
        if not rank:
            return {role: (rows, self.width)}
        return {f"{role}_a": (rank, self.width), f"{role}_b": (rows, rank)}

    def _through(self, scope: Scope, x: Value, role: str, rank: int, rows: int) -> Value:
        """Write one matrix, or two with `rank` values between them."""
        if not rank:
            return linear(scope, x, role, self.width, rows)
        inner = linear(scope, x, f"{role}_a", self.width, rank)
        return linear(scope, inner, f"{role}_b", rank, rows)
