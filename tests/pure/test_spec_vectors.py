"""Layers in float64 against published vectors of the original scalar engine.

The vectors are FNV-1a hashes of float32 outputs. Each recipe here computes in float32 as that
engine does, step by step; where its hash is the published one, its outputs are the engine's, and
the layer in float64 must be close to them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from one_layer import run

from cortiq.ir.layers import KDA, Attention, AttentionGate, GatedDeltaNet, QKNorm, ShortConv
from cortiq.numerics.layouts import Weight
from cortiq.numerics.rope import RopeTable

F32, F64 = np.float32, np.float64


def fnv(values):
    """FNV-1a, 64 bits, over the bytes of little-endian float32."""
    value = 0xCBF29CE484222325
    for byte in np.asarray(values, "<f4").tobytes():
        value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
    return f"{value:016x}"


def test_the_hash_is_the_one_meant():
    assert fnv([1.0]) == "4b72477f9c5c2f98"


def pattern(count, salt, a, b, period, size):
    """(((i·a + salt·b) mod period)/period − 0.5)·size."""
    steps = (np.arange(count, dtype=np.int64) * a + salt * b) % period
    return (steps.astype(F32) / F32(period) - F32(0.5)) * F32(size)


def matrix(rows, columns, salt, a, b, period, size):
    return pattern(rows * columns, salt, a, b, period, size).reshape(rows, columns)


def mv(weight, x):
    """W·x, products and sums each rounded, in ascending index."""
    total = np.zeros(len(weight), F32)
    for i in range(len(x)):
        total = total + weight[:, i] * x[i]
    return total


def each(function, values):
    """A function in float64, rounded once, of every element."""
    flat = [function(float(v)) for v in np.asarray(values).ravel()]
    return np.array(flat, F64).astype(F32).reshape(np.shape(values))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def silu(x):
    return x / (1 + math.exp(-x))


def softplus(x):
    return x if x > 20 else math.log1p(math.exp(x))


def squares(x):
    """Σx² in float64, ascending."""
    total = 0.0
    for v in x:
        total += float(v) * float(v)
    return total


def convolve(history, row, taps):
    """The engine's order: the newest row first, then from the oldest, in float64."""
    total = row.astype(F64) * taps[:, -1].astype(F64)
    for j in range(len(history)):
        total = total + history[j].astype(F64) * taps[:, j].astype(F64)
    return total


def unit(x, factor=1.0):
    return x * F32(1 / (math.sqrt(squares(x) + 1e-6) * factor))


def gated_norm(o, gate, weight, eps, function):
    inverse = 1 / math.sqrt(squares(o) / len(o) + eps)
    values = [
        float(v) * inverse * float(w) * function(float(g))
        for v, w, g in zip(o, weight, gate, strict=True)
    ]
    return np.array(values, F64).astype(F32)


def gated_delta_net(op, w, rows):
    """One head at a time; the decay is moved into the sums, as the engine does."""
    heads, dk, dv, keys = op.heads, op.key_dim, op.value_dim, op.keys
    history = [np.zeros(2 * keys + op.values, F32)] * (op.kernel - 1)
    state, out = np.zeros((heads, dk, dv), F32), []
    for x in rows:
        qkv, z, a, b = (mv(w[role], x) for role in ("qkv", "z", "a", "b"))
        mixed = convolve(history, qkv, w["conv"])
        joint = np.array([silu(v) for v in mixed], F64).astype(F32)
        history = [*history[1:], qkv]
        parts = []
        for h in range(heads):
            key = h * op.key_heads // heads
            q = unit(joint[key * dk : (key + 1) * dk], math.sqrt(dk))
            k = unit(joint[keys + key * dk : keys + (key + 1) * dk])
            v = joint[2 * keys + h * dv : 2 * keys + (h + 1) * dv]
            log = -math.exp(float(w["A_log"][h])) * softplus(float(a[h]) + float(w["dt_bias"][h]))
            decay, beta = F32(math.exp(log)), F32(sigmoid(float(b[h])))
            found = np.zeros(dv, F32)
            for i in range(dk):
                found = found + state[h, i] * k[i]
            delta = (v - decay * found) * beta
            o = np.zeros(dv, F32)
            for i in range(dk):
                state[h, i] = decay * state[h, i] + k[i] * delta
                o = o + q[i] * state[h, i]
            parts.append(gated_norm(o, z[h * dv : (h + 1) * dv], w["norm"], op.eps, silu))
        out.append(mv(w["out"], np.concatenate(parts)))
    return np.array(out)


def kimi(op, w, rows):
    """Three convolutions; a decay a channel."""
    heads, dk, dv = op.heads, op.key_dim, op.value_dim
    widths = {"q": heads * dk, "k": heads * dk, "v": heads * dv}
    history = {r: [np.zeros(n, F32)] * (op.kernel - 1) for r, n in widths.items()}
    starts = {"q": 0, "k": heads * dk, "v": 2 * heads * dk}
    state, out = np.zeros((heads, dk, dv), F32), []
    for x in rows:
        mixed = {}
        for role, n in widths.items():
            row = mv(w[role], x)
            taps = w["conv"][starts[role] : starts[role] + n]
            values = convolve(history[role], row, taps)
            mixed[role] = np.array([silu(v) for v in values], F64).astype(F32)
            history[role] = [*history[role][1:], row]
        f, b = mv(w["f_b"], mv(w["f_a"], x)), mv(w["b"], x)
        gate, parts = mv(w["g_b"], mv(w["g_a"], x)), []
        for h in range(heads):
            at = slice(h * dk, (h + 1) * dk)
            q, k = unit(mixed["q"][at], math.sqrt(dk)), unit(mixed["k"][at])
            v, beta = mixed["v"][h * dv : (h + 1) * dv], F32(sigmoid(float(b[h])))
            decay = [channel_decay(op, w, f, h, i) for i in range(dk)]
            found = np.zeros(dv, F32)
            for i in range(dk):
                found = found + state[h, i] * (k[i] * decay[i])
            delta, o = (v - found) * beta, np.zeros(dv, F32)
            for i in range(dk):
                state[h, i] = decay[i] * state[h, i] + k[i] * delta
                o = o + q[i] * state[h, i]
            parts.append(gated_norm(o, gate[h * dv : (h + 1) * dv], w["norm"], op.eps, sigmoid))
        out.append(mv(w["o"], np.concatenate(parts)))
    return np.array(out)


def channel_decay(op, w, f, h, i):
    raw = float(f[h * op.key_dim + i]) + float(w["dt_bias"][h * op.key_dim + i])
    rate = math.exp(float(w["A_log"][h if op.decay_per == "head" else i]))
    if op.decay_bound is None:
        return F32(math.exp(-rate * softplus(raw)))
    return F32(math.exp(op.decay_bound * sigmoid(rate * raw)))


def short_conv(op, w, rows):
    n, out = op.width, []
    history = [np.zeros(n, F32)] * (op.kernel - 1)
    for x in rows:
        joint = mv(w["in"], x)
        gated = joint[:n] * joint[2 * n :]
        y = w["conv"][:, -1] * gated
        for tap in range(op.kernel - 1):
            y = y + w["conv"][:, -2 - tap] * history[-1 - tap]
        history = [*history[1:], gated]
        out.append(mv(w["out"], joint[n : 2 * n] * y))
    return np.array(out)


def net_case():
    op = GatedDeltaNet(16, 4, 2, key_dim=6, value_dim=5, kernel=4, eps=1e-6)
    r = np.random.RandomState(7)
    w = {
        "qkv": r.randn(44, 16) * 0.2, "z": r.randn(20, 16) * 0.2, "a": r.randn(4, 16) * 0.2,
        "b": r.randn(4, 16) * 0.2, "A_log": r.rand(4) * 2, "dt_bias": r.randn(4) * 0.3,
        "conv": r.randn(44, 4) * 0.3, "norm": 1 + 0.2 * r.rand(5), "out": r.randn(16, 20) * 0.2,
    }  # fmt: skip
    w = {role: value.astype(F32) for role, value in w.items()}
    return op, w, (r.randn(7, 16) * 0.5).astype(F32), gated_delta_net


def kimi_case(**options):
    op = KDA(6, 2, 4, 4, kernel=3, eps=1e-6, decay_rank=3, gate_rank=3, **options)
    sizes = {"q": (8, 6, 1), "k": (8, 6, 2), "v": (8, 6, 3), "f_a": (3, 6, 7), "f_b": (8, 3, 8),
             "b": (2, 6, 10), "g_a": (3, 6, 11), "g_b": (8, 3, 12), "o": (6, 8, 13)}  # fmt: skip
    w = {role: matrix(*size, 31, 17, 101, 0.6) for role, size in sizes.items()}
    taps = [matrix(8, 3, salt, 13, 7, 89, 0.8) for salt in (4, 5, 6)]
    w |= {"conv": np.concatenate(taps), "dt_bias": pattern(8, 9, 13, 7, 89, 0.8)}
    count, salt = (2, 40) if op.decay_per == "head" else (4, 41)
    w["A_log"] = pattern(count, salt, 13, 7, 89, 0.8)
    w["norm"] = F32(1) + F32(0.1) * np.arange(4, dtype=F32)
    rows = [(6 * t + np.arange(6)).astype(F32) / F32(32) - F32(0.5) for t in range(6)]
    return op, w, np.array(rows), kimi


def conv_case():
    op = ShortConv(8, 3)
    w = {"in": matrix(24, 8, 1, 11, 5, 89, 0.5), "out": matrix(8, 8, 2, 11, 5, 89, 0.5)}
    steps = (7 * np.arange(24) % 13).astype(F32)
    w["conv"] = ((steps / F32(13) - F32(0.5)) * F32(0.8)).reshape(8, 3)
    rows = [(8 * t + np.arange(8)).astype(F32) / F32(16) - F32(1) for t in range(6)]
    return op, w, np.array(rows), short_conv


CASES = {
    "gated delta net": (net_case, {}, "2f6e511615a6afdd"),
    "kimi, decay a head": (kimi_case, {}, "81418954d167cace"),
    "kimi, decay a value, bounded": (
        kimi_case, {"decay_per": "value", "decay_bound": -5.0}, "64466f1cf2b49a23",
    ),
    "short convolution": (conv_case, {}, "bd2f9c31acba366e"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_recurrent_layers_are_the_engine_s(name):
    make, options, expected = CASES[name]
    op, w, rows, recipe = make(**options)
    engine = recipe(op, w, rows)
    assert fnv(engine) == expected
    weights = {role: Weight.from_floats(v if v.ndim == 2 else v[None]) for role, v in w.items()}
    close = run(op, weights, {"x": rows.astype(F64)})
    assert np.abs(close - engine).max() < 2e-6 * np.abs(engine).max()


ATTENTION = Attention(
    24, 4, 2, 16, scale=0.25, rope=RopeTable(1e4, 8), qk_norm=QKNorm(1e-6), biased=True
)


def normed_head(x, weight):
    return x * F32(1 / math.sqrt(squares(x) / len(x) + 1e-6)) * weight


def rotated(x, position):
    y = x.copy()
    for i in range(4):
        frequency = F32(1) / F32(math.pow(1e4, float(F32(2 * i) / F32(8))))
        angle = F32(position) * frequency
        cos, sin = F32(math.cos(float(angle))), F32(math.sin(float(angle)))
        y[i], y[i + 4] = x[i] * cos - x[i + 4] * sin, x[i] * sin + x[i + 4] * cos
    return y


def attend(op, q, keys, values):
    """A query over its visible keys; probabilities by division."""
    first = max(0, len(keys) - op.window) if op.window else 0
    scores = []
    for key in keys[first:]:
        dot = F32(0)
        for i in range(len(q)):
            dot = dot + q[i] * key[i]
        score = dot * F32(op.scale)
        scores.append(F32(5) * F32(math.tanh(float(score / F32(5)))) if op.soft_cap else score)
    e = [F32(math.exp(float(s - max(scores)))) for s in scores]
    total = F32(0)
    for term in e:
        total = total + term
    out = np.zeros(16, F32)
    for p, value in zip(e, values[first:], strict=True):
        out = out + (p / total) * value
    return out


def attention(op, w, rows):
    keys, values, out = [[], []], [[], []], []
    for t, x in enumerate(rows):
        joint = (mv(w["q"], x) + w["q_bias"]).reshape(4, -1)
        q, gate = joint[:, :16], joint[:, 16:]
        k = (mv(w["k"], x) + w["k_bias"]).reshape(2, 16)
        v = (mv(w["v"], x) + w["v_bias"]).reshape(2, 16)
        for h in range(2):
            keys[h].append(rotated(normed_head(k[h], w["k_norm"]), t))
            value = v[h]
            if op.value_norm is not None:
                root = F32(math.sqrt(squares(value) / 16 + 1e-6))
                value = value * (F32(1) / root)
            values[h].append(value)
        heads = []
        for h in range(4):
            query = rotated(normed_head(q[h], w["q_norm"]), t)
            heads.append(attend(op, query, keys[h // 2], values[h // 2]))
        y = np.array(heads)
        if op.output_gate:
            y = y * (F32(1) / (F32(1) + each(lambda g: math.exp(-g), gate)))
        if op.gate:
            given = mv(w["gate"], x)
            power = each(lambda g: math.exp(-abs(g)), given)
            factor = np.maximum(given, F32(0)) + each(math.log1p, power)
            y = y * factor.reshape(4, -1)
        out.append(mv(w["o"], y.reshape(-1)))
    return np.array(out)


OPTIONS = {
    "plain": ({}, "50d0824460a1096d"),
    "window": ({"window": 3}, "87bbe6c1751fe09a"),
    "soft cap": ({"soft_cap": 5.0}, "b84988a9416439e2"),
    "output gate": ({"output_gate": True}, "4fd50191226fd9b5"),
    "softplus gate a head": (
        {"gate": AttentionGate("softplus", per_head=True)}, "2b5669116f592ce2",
    ),
    "softplus gate an element, value norm": (
        {"gate": AttentionGate(), "value_norm": 1e-6}, "43220ef11e2f8c20",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_is_the_engine_s(name):
    options, expected = OPTIONS[name]
    op = replace(ATTENTION, **options)
    rows_of = {"q": 128 if op.output_gate else 64, "k": 32, "v": 32}
    w = {r: matrix(n, 24, s, 13, 7, 97, 0.4) for s, (r, n) in enumerate(rows_of.items(), 1)}
    w["o"] = matrix(24, 64, 4, 13, 7, 97, 0.4)
    if op.gate:
        w["gate"] = matrix(4 if op.gate.per_head else 64, 24, 5, 13, 7, 97, 0.4)
    steps = np.arange(16, dtype=F32)
    w["q_norm"], w["k_norm"] = F32(0.9) + F32(0.01) * steps, F32(1.1) - F32(0.01) * steps
    for role, size in (("q", 0.01), ("k", -0.02), ("v", 0.005)):
        w[f"{role}_bias"] = F32(size) * np.arange(rows_of[role], dtype=F32)
    x = np.array([((24 * t + np.arange(24)) * 5 % 37).astype(F32) / F32(37) - F32(0.5)
                  for t in range(7)])  # fmt: skip
    engine = attention(op, w, x)
    assert fnv(engine) == expected
    weights = {role: Weight.from_floats(v if v.ndim == 2 else v[None]) for role, v in w.items()}
    close = run(op, weights, {"x": x.astype(F64)})
    assert np.abs(close - engine).max() < 1e-5 * np.abs(engine).max()
