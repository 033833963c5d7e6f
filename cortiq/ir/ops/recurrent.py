"""Primitives whose state every position replaces: delta rules and the state-space step."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, divides
from cortiq.ir.op import Op, Type, expect
from cortiq.ir.slots import Recurrent, Slot


@dataclass(frozen=True)
class DeltaRule(Op):
    """One step of the gated delta rule (`numerics.recurrent.delta_step`).

    S ← diag(α)·S; S ← S + k·((v − Sᵀk)·β)ᵀ; o = Sᵀq, for each head. Inputs: q and k
    f32[key_heads, key_dim], v f32[heads, value_dim], the decay α f32[heads] (gated delta net) or
    f32[heads, key_dim] (Kimi Delta Attention), β f32[heads]. Output f32[heads, value_dim]. Head h
    takes q and k of key head h // (heads / key_heads). The state is f32[heads, key_dim, value_dim].

    Parameters
    ----------
    key_heads : heads of q and k; None for as many as `heads`.
    """

    heads: Count
    key_dim: Count
    value_dim: Count
    key_heads: Count | None = None
    relations = (divides("key_heads", "heads"),)
    writes_slots = True

    @property
    def groups(self) -> int:
        """Heads of q and k."""
        return self.key_heads or self.heads

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one output row a head."""
        q, k, v, alpha, beta = inputs
        keys = Type((self.groups, self.key_dim))
        values, numbers = Type((self.heads, self.value_dim)), Type((self.heads,))
        decays = (numbers, Type((self.heads, self.key_dim)))
        fits = q == k == keys and v == values and alpha in decays and beta == numbers
        expect(fits, f"DeltaRule takes {keys} twice, {values}, a decay and {numbers}: {inputs}")
        return (values,)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the state: the map from keys to values."""
        return {"state": Recurrent((self.heads, self.key_dim, self.value_dim))}


@dataclass(frozen=True)
class DiagonalDeltaRule(Op):
    """One step of a delta rule that decays by channel and removes along a key of its own
    (`numerics.recurrent.diagonal_delta_step`).

    S ← diag(α)·S − β·(Sᵀκ)ᵀ + k·vᵀ; o = Sᵀq, for each head. Inputs: q, k f32[heads, key_dim],
    v f32[heads, value_dim], the decay α, the removal key κ and its strengths β
    f32[heads, key_dim]. Output f32[heads, value_dim]. The state is f32[heads, key_dim, value_dim].
    RWKV-7, where κ is a unit key and β = κ·a.
    """

    heads: Count
    key_dim: Count
    value_dim: Count
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one output row a head."""
        keys, values = Type((self.heads, self.key_dim)), Type((self.heads, self.value_dim))
        fits = inputs == (keys, keys, values, keys, keys, keys)
        expect(fits, f"DiagonalDeltaRule takes {keys} twice, {values}, {keys} thrice: {inputs}")
        return (values,)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the state: the map from keys to values."""
        return {"state": Recurrent((self.heads, self.key_dim, self.value_dim))}


@dataclass(frozen=True)
class StateSpace(Op):
    """One step of a selective state space (`numerics.recurrent.state_space_step`).

    S ← α·S + B·(Δ·x)ᵀ; o = Sᵀ·C, for each head. Inputs: x f32[heads, head_dim], B and C
    f32[groups, state_dim], the decay α = e^(Δ·A) f32[heads], or f32[heads, state_dim] for one
    a row of the state, the step Δ f32[heads]. Output f32[heads, head_dim]. Head h takes B and C of
    group h // (heads / groups). The state is f32[heads, state_dim, head_dim]. Mamba-2; Mamba-1,
    with a head a channel and a decay a row. The skip D·x is a Gain and an Add.
    """

    heads: Count
    head_dim: Count
    state_dim: Count
    groups: Count = 1
    relations = (divides("groups", "heads"),)
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one output row a head."""
        x, b, c, alpha, delta = inputs
        rows, numbers = Type((self.heads, self.head_dim)), Type((self.heads,))
        shared = Type((self.groups, self.state_dim))
        decays = (numbers, Type((self.heads, self.state_dim)))
        fits = x == rows and b == c == shared and alpha in decays and delta == numbers
        expect(fits, f"StateSpace takes {rows}, {shared} twice, a decay and {numbers}: {inputs}")
        return (rows,)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the state."""
        return {"state": Recurrent((self.heads, self.state_dim, self.head_dim))}
