"""A draft module in float64, written from the formula alone; it shares no code with cortiq.

u = W·[norm(e) ; norm(h)];  u += o·attend(norm(u));  u += mlp(norm(u));  head(norm(u))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Geometry:
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    base: float
    turned: int
    eps: float
    window: int | None = None
    offset: float = 0.0


@dataclass(frozen=True)
class Names:
    layer: str
    embedding_norm: str
    hidden_norm: str
    project: str
    norm: str
    sinks: bool = False
    qk_norm: bool = False


def rms(x, weight, eps, offset=0.0):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * (weight + offset)


def turned(x, positions, how):
    """Rotary embedding of the first values of every head, halves paired."""
    half = how.turned // 2
    angle = positions[:, None] * how.base ** (-2.0 * np.arange(half) / how.turned)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def attended(q, k, v, how, sinks):
    rows, group = len(q), how.heads // how.kv_heads
    out = np.zeros((rows, how.heads, how.value_dim))
    for i in range(rows):
        first = 0 if how.window is None else max(0, i - how.window + 1)
        for h in range(how.heads):
            scores = k[first : i + 1, h // group] @ q[i, h] * how.key_dim**-0.5
            weights = np.exp(scores)
            total = weights.sum() + (0.0 if sinks is None else np.exp(sinks[h]))
            out[i, h] = weights @ v[first : i + 1, h // group] / total
    return out


def module(weights, names, how, tokens, hidden, table, head):
    """(residual, logits) of every row; row j takes tokens[j] and hidden[j] at position j.

    `weights(name)` gives a tensor in float64; `table` and `head` are the trunk's.
    """

    def norm(x, name):
        return rms(x, weights(f"{name}.weight").reshape(-1), how.eps, how.offset)

    def linear(x, name):
        return x @ weights(f"{names.layer}.{name}.weight").T

    joined = [norm(table[tokens], names.embedding_norm), norm(hidden, names.hidden_norm)]
    u = np.concatenate(joined, axis=-1) @ weights(f"{names.project}.weight").T
    x, rows = norm(u, f"{names.layer}.input_layernorm"), len(tokens)
    q = linear(x, "self_attn.q_proj").reshape(rows, how.heads, how.key_dim)
    k = linear(x, "self_attn.k_proj").reshape(rows, how.kv_heads, how.key_dim)
    v = linear(x, "self_attn.v_proj").reshape(rows, how.kv_heads, how.value_dim)
    if names.qk_norm:
        q, k = (norm(p, f"{names.layer}.self_attn.{n}_norm") for p, n in ((q, "q"), (k, "k")))
    positions = np.arange(rows)
    sinks = weights(f"{names.layer}.self_attn.sinks").reshape(-1) if names.sinks else None
    o = attended(turned(q, positions, how), turned(k, positions, how), v, how, sinks)
    u = u + linear(o.reshape(rows, -1), "self_attn.o_proj")
    x = norm(u, f"{names.layer}.post_attention_layernorm")
    gate = linear(x, "mlp.gate_proj")
    u = u + linear(gate / (1 + np.exp(-gate)) * linear(x, "mlp.up_proj"), "mlp.down_proj")
    return u, norm(u, names.norm) @ head.T
