"""Definitions of primitives that read or write slots: what `oracle` evaluates them with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortiq.numerics import attention, compression, key_blocks, recurrent
from cortiq.numerics.contract import F32, Flags, Floats, Ints
from cortiq.numerics.layouts import floats
from cortiq.numerics.quantise import Quantised, no_values, recalled


@dataclass
class OracleCall:
    """A primitive's context besides its inputs: its weights, the slots so far, faults of rows."""

    op: Any
    weights: Mapping[str, Any]
    slots: dict[str, Any]
    faults: Flags
    positions: Ints
    roles: Mapping[str, str] = field(default_factory=dict)

    def vector(self, role: str) -> Floats | None:
        """Return a float weight with one row, or None if the primitive has no such role."""
        return floats(self.weights[role])[0] if role in self.weights else None


def store_kv(call: OracleCall, keys: Quantised, values: Quantised | None = None) -> tuple:
    """Append rows to the slot."""
    values = no_values(len(keys.q), call.op.heads) if values is None else values
    rows = call.slots[call.roles["kv"]]
    for index, new in enumerate((keys, values)):
        old = rows[index]
        rows[index] = Quantised(np.concatenate([old.q, new.q]), np.concatenate([old.e, new.e]))
    return ()


def choose(call: OracleCall, q: Quantised, position: Ints, *weights: Floats) -> Ints:
    """Choose blocks, or keys where heads have weights."""
    op, keys = call.op, call.slots[call.roles["kv"]][0]
    if weights:
        return key_blocks.choose_keys(q, keys, weights[0], position, op.top, op.every)
    how = position, op.block, op.top, op.local
    return key_blocks.choose_blocks(q, keys, *how)


def attend(call: OracleCall, q: Quantised, position: Ints, chosen: Ints | None = None) -> Any:
    """Attend to the slot's rows."""
    op, (keys, values) = call.op, call.slots[call.roles["kv"]]
    mass = np.zeros(q.e.shape, F32)
    out = attention.attend(
        q, keys, values, position, op.scale, window=op.window or 0, soft_cap=op.soft_cap,
        sinks=call.vector("sinks"), faults=call.faults, own=call.positions,
        blocks=None if chosen is None else attention.ChosenBlocks(op.block, chosen),
        mass=mass, slopes=op.slopes,
    )  # fmt: skip
    return (out, mass[..., None]) if op.mass else out


def recall(call: OracleCall, position: Ints) -> Floats:
    """Read the key rows at the positions."""
    keys, _ = call.slots[call.roles["kv"]]
    return recalled(Quantised(keys.q[position], keys.e[position]))


def causal_conv(call: OracleCall, x: Floats) -> Floats:
    """Convolve, and keep the last rows."""
    history = call.slots[call.roles["ring"]]
    call.slots[call.roles["ring"]] = recurrent.conv_history(history, x)
    taps = floats(call.weights["weight"])
    return recurrent.causal_conv(history, x, taps, call.vector("bias"), call.faults)


def hash_ngrams(call: OracleCall, token: Ints) -> Ints:
    """Hash n-grams token by token, and keep the last tokens."""
    op, name = call.op, call.roles["ring"]
    before, size = call.slots[name], len(call.op.multipliers)
    known = [int(x) - 1 for x in before[:, 0]] + [int(t) for t in token]
    out = np.zeros((len(token), len(op.heights)), np.int32)
    for row in range(len(token)):
        grams = [known[row + size - 1]]
        for back in range(1, size):
            last = known[row + size - 1 - back]
            grams.append(op.end if last < 0 or (back > 1 and grams[-1] == op.end) else last)
        hashes = [(t * m) % 2**64 for t, m in zip(grams, op.multipliers, strict=True)]
        for head, height in enumerate(op.heights):
            mixed = 0
            for one in hashes[: 2 + head // (len(op.heights) // (size - 1))]:
                mixed ^= one
            out[row, head] = mixed % height + sum(op.heights[:head])
    kept = np.array([[t + 1] for t in token], F32)
    call.slots[name] = recurrent.conv_history(before, kept)
    return out


def compress(call: OracleCall, rows: Floats, position: Ints, gates: Floats) -> Floats:
    """Compute entries, and keep the rows of open windows."""
    name, bias = call.roles["ring"], floats(call.weights["bias"])
    before, given = call.slots[name], (rows, gates, position, bias, call.op.width, call.faults)
    out, kept = compression.compress(before, *given)
    call.slots[name] = recurrent.conv_history(before, kept)
    return out


def recurrent_step(call: OracleCall, step: recurrent.StepFunction, *rows: Floats) -> Floats:
    """Step from state to state."""
    name = call.roles["state"]
    call.slots[name], out = recurrent.in_order(step, call.slots[name], rows, call.faults)
    return out
