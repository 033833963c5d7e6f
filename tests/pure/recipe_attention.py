"""Attention of the engine specification, coded from its text, and its norms and RoPE tables."""

from __future__ import annotations

import math

import numpy as np
from recipes import F32, each, product, wide_sum


def mean_square(x):
    return wide_sum(x.astype(np.float64) ** 2) / len(x)


def norm(x, w, eps):
    """N1, of layers: the reciprocal of a float32 root."""
    return (x * (F32(1) / F32(math.sqrt(mean_square(x) + eps)))) * w


def head_norm(x, w, eps):
    """N2, of queries and keys: one rounding of the inverse root."""
    return (x * F32(1 / math.sqrt(mean_square(x) + eps))) * w


def wide_norm(x, w, eps):
    """N4, one rounding in all."""
    return each(lambda a, b: a * (mean_square(x) + eps) ** -0.5 * b, x, w)


def frequencies(dim, base):
    """RN(1/RN(base^RN(RN(2i)/dim)))."""
    powers = (F32(2) * np.arange(dim // 2, dtype=F32)) / F32(dim)
    return F32(1) / each(lambda p: float(F32(base)) ** p, powers)


def yarn(dim, base, factor, original, fast=32.0, slow=1.0):
    """Frequencies between those of the base and of base/factor, all in float32."""
    dim32, log_base = F32(dim), F32(math.log(float(F32(base))))

    def bound(rotations):
        inside = F32(original) / (F32(rotations) * F32(2) * F32(math.pi))
        return (dim32 * F32(math.log(float(inside)))) / (F32(2) * log_base)

    low = max(math.floor(bound(fast)), 0)
    high = min(max(math.ceil(bound(slow)), 0), dim // 2 - 1)
    i, span = np.arange(dim // 2, dtype=F32), F32(max(high - low, 1))
    ramp = np.clip(np.maximum(i - F32(low), 0) / span, 0, 1).astype(F32)
    keep, plain = F32(1) - ramp, frequencies(dim, base)
    return (plain / F32(factor)) * (F32(1) - keep) + plain * keep


def rotate(x, position, table):
    """Pairs (i, i + n) by RN(position)·frequency."""
    n = len(table)
    angle = F32(position) * table
    cos, sin = each(math.cos, angle), each(math.sin, angle)
    y = x.copy()
    y[:n], y[n : 2 * n] = x[:n] * cos - x[n : 2 * n] * sin, x[:n] * sin + x[n : 2 * n] * cos
    return y


def attend(q, keys, values, scale, window, cap):
    """One query over stored rows: the weighted values, and the weights."""
    first = max(len(keys) - window, 0) if window else 0
    score = np.array([_dot(q, k) * F32(scale) for k in keys[first:]], F32)
    if cap:
        score = each(math.tanh, score / F32(cap)) * F32(cap)
    e = each(math.exp, score - score.max())
    total = F32(0)
    for value in e:
        total = total + value
    p, out = e / total, np.zeros(len(values[0]), F32)
    for weight, value in zip(p, values[first:], strict=True):
        out = out + weight * value if abs(weight) >= 1e-12 else out
    return out, np.concatenate([np.zeros(first, F32), p])


def _dot(a, b):
    total = F32(0)
    for x, y in zip(a, b, strict=True):
        total = total + x * y
    return total


def gate_softplus(x):
    """max(x, 0) + log1p(e^−|x|), each function rounded to float32."""
    return np.maximum(x, F32(0)) + each(math.log1p, each(math.exp, -np.abs(x)))


def attention(w, x, heads, kv_heads, dim, *, table, scale, eps, window=0, cap=0.0):
    """Outputs of all rows, and how much weight each stored row got."""
    keys, values = ([[] for _ in range(kv_heads)] for _ in "kv")
    importance, outputs = np.zeros(len(x), F32), []
    for position, row in enumerate(x):
        q, k, v = (product(w[n], row) + w[f"{n}_bias"] for n in "qkv")
        q, k, v = q.reshape(heads, -1), k.reshape(kv_heads, dim), v.reshape(kv_heads, dim)
        q, gate = q[:, :dim], q[:, dim:]
        for g in range(kv_heads):
            keys[g].append(rotate(head_norm(k[g], w["k_norm"], eps), position, table))
            values[g].append(norm(v[g], F32(1), eps) if "v_norm" in w else v[g])
        outs, seen = [], np.zeros(position + 1, F32)
        for h in range(heads):
            g = h * kv_heads // heads
            turned = rotate(head_norm(q[h], w["q_norm"], eps), position, table)
            out, p = attend(turned, keys[g], values[g], scale, window, cap)
            if gate.size:
                out = out * (F32(1) / (F32(1) + each(math.exp, -gate[h])))
            outs.append(out)
            seen = seen + p
        importance[: position + 1] = importance[: position + 1] + seen
        out = np.array(outs)
        if "gate" in w:
            factor = gate_softplus(product(w["gate"], row)).reshape(heads, -1)
            out = out * factor
        outputs.append(product(w["o"], out.reshape(-1)))
    return np.array(outputs), importance
