"""Mixers of the engine specification, coded from its text: every float32 rounding as it says.

Outputs and states are hashed as it hashes them, so that this code is known to be what was meant;
our graphs in float64 are then compared with what it computes. Nothing of cortiq is used here.
"""

from __future__ import annotations

import math

import numpy as np

F32 = np.float32


def fnv(*arrays):
    """FNV-1a, 64 bits, over the little-endian bytes of the float32 arrays."""
    h = 0xCBF29CE484222325
    for byte in b"".join(np.ascontiguousarray(a, "<f4").tobytes() for a in arrays):
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def synthetic(shape, salt, a, b, m, gain):
    """(RN((i·A + s·B) mod M)/M − ½)·G in float32."""
    steps = (np.arange(math.prod(shape)) * a + salt * b) % m
    return ((steps.astype(F32) / F32(m) - F32(0.5)) * F32(gain)).reshape(shape)


def product(w, x):
    """W·x: products and sums rounded one by one, columns ascending."""
    y = np.zeros(len(w), F32)
    for column in range(w.shape[1]):
        y = y + w[:, column] * x[column]
    return y


def wide_sum(values):
    """A float64 sum, index ascending."""
    total = 0.0
    for value in np.asarray(values, np.float64):
        total += float(value)
    return total


def each(function, *arrays):
    """A function of Python floats, elementwise, rounded to float32 once."""
    return np.array([function(*map(float, v)) for v in zip(*arrays, strict=True)], F32)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def silu(x):
    return x / (1 + math.exp(-x))


def softplus(x):
    return x if x > 20 else math.log1p(math.exp(x))


def conv_silu(ring, x, taps):
    """A causal convolution and SiLU in float64, the current tap first; the ring moves on."""
    acc = x.astype(np.float64) * taps[:, -1]
    for j, row in enumerate(ring):
        acc = acc + row.astype(np.float64) * taps[:, j]
    return each(silu, acc), np.concatenate([ring[1:], x[None]])


def gated_norm(o, w, gate, eps, act):
    """The norm of one head's output times its gate: float64, one rounding."""
    inverse = 1 / math.sqrt(wide_sum(o.astype(np.float64) ** 2) / len(o) + eps)
    return each(lambda a, b, g: ((a * inverse) * b) * act(g), o, w, gate)


def units(q, k):
    """q over its length and √dk, k over its length."""
    energy_q, energy_k = (wide_sum(x.astype(np.float64) ** 2) + 1e-6 for x in (q, k))
    return q * F32(1 / (math.sqrt(energy_q) * math.sqrt(len(q)))), k * F32(1 / math.sqrt(energy_k))


def delta(state, q, k, v, decay, beta, key):
    """A step of one head, float32, rows of the state ascending: (state', o)."""
    recalled, o = np.zeros(len(v), F32), np.zeros(len(v), F32)
    for i in range(len(k)):
        recalled = recalled + state[i] * key[i]
    d = (v - recalled) * beta if decay.ndim else (v - decay * recalled) * beta
    after = np.empty_like(state)
    for i in range(len(k)):
        after[i] = (decay[i] if decay.ndim else decay) * state[i] + k[i] * d
        o = o + q[i] * after[i]
    return after, o


def gated_delta_net(w, x, heads, key_heads, dk, dv, eps):
    """Outputs of all rows, and the final ring and state."""
    taps = w["conv"].astype(np.float64)
    ring = np.zeros((taps.shape[1] - 1, taps.shape[0]), F32)
    state, outputs = np.zeros((heads, dk, dv), F32), []

    def decay(log, a, bias):
        return math.exp(-math.exp(log) * softplus(a + bias))

    for row in x:
        qkv, z, a, b = (product(w[n], row) for n in ("qkv", "z", "a", "b"))
        qkv, ring = conv_silu(ring, qkv, taps)
        q, k, v = np.split(qkv, [key_heads * dk, 2 * key_heads * dk])
        q, k, v, z = (y.reshape(-1, d) for y, d in ((q, dk), (k, dk), (v, dv), (z, dv)))
        g = each(
            lambda log, s, t: math.exp(-math.exp(log) * softplus(s + t)), w["A_log"], a, w["dt"]
        )
        beta, outs = each(sigmoid, b), []
        for h in range(heads):
            unit_q, unit_k = units(q[h * key_heads // heads], k[h * key_heads // heads])
            state[h], o = delta(state[h], unit_q, unit_k, v[h], g[h], beta[h], unit_k)
            outs.append(gated_norm(o, w["norm"], z[h], eps, silu))
        outputs.append(product(w["out"], np.concatenate(outs)))
    return np.array(outputs), ring, state


def kimi_delta(w, x, heads, dk, dv, eps, lower_bound=None):
    """Outputs of all rows, and the final rings and state."""
    rings = {n: np.zeros((w[f"conv_{n}"].shape[1] - 1, len(w[n])), F32) for n in "qkv"}
    state, outputs = np.zeros((heads, dk, dv), F32), []
    logs = np.repeat(w["A_log"], dk) if len(w["A_log"]) == heads else np.tile(w["A_log"], heads)

    def decay(log, f, bias):
        raw = f + bias
        if lower_bound is None:
            return math.exp(-math.exp(log) * softplus(raw))
        return math.exp(lower_bound * sigmoid(math.exp(log) * raw))

    for row in x:
        cut = {}
        for n in "qkv":
            taps = w[f"conv_{n}"].astype(np.float64)
            cut[n], rings[n] = conv_silu(rings[n], product(w[n], row), taps)
        gamma = each(decay, logs, product(w["f_b"], product(w["f_a"], row)), w["dt"])
        beta, gate = each(sigmoid, product(w["b"], row)), product(w["g_b"], product(w["g_a"], row))
        q, k, v, gate = (y.reshape(heads, -1) for y in (cut["q"], cut["k"], cut["v"], gate))
        outs = []
        for h, g in enumerate(gamma.reshape(heads, dk)):
            unit_q, unit_k = units(q[h], k[h])
            state[h], o = delta(state[h], unit_q, unit_k, v[h], g, beta[h], unit_k * g)
            outs.append(gated_norm(o, w["norm"], gate[h], eps, sigmoid))
        outputs.append(product(w["out"], np.concatenate(outs)))
    return np.array(outputs), [*rings.values()], state


def short_conv(w, x):
    """Outputs of all rows, and the final ring [H, L−1], the newest row first."""
    taps = w["conv"]
    ring, outputs = np.zeros((len(taps), taps.shape[1] - 1), F32), []
    for row in x:
        b, c, value = np.split(product(w["in"], row), 3)
        bx = b * value
        acc = taps[:, -1] * bx
        for s in range(ring.shape[1]):
            acc = acc + taps[:, -2 - s] * ring[:, s]
        outputs.append(product(w["out"], c * acc))
        ring = np.concatenate([bx[:, None], ring[:, :-1]], axis=1)
    return np.array(outputs), ring
