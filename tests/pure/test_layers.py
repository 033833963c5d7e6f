"""Attention against plain float64 formulas from its definition, every option by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from one_layer import EPS, FUNCTIONS, normed, plain, run, sigmoid, weights_for

from cortiq.errors import GraphError
from cortiq.ir.layers import Attention, AttentionGate, LatentAttention, QKNorm
from cortiq.ir.layers.indexer import Indexer
from cortiq.numerics.rope import RopeTable, Sections

ROWS = 20


def rotated(x, table, pairing, turns=None):
    """Rows of heads turned by their row number, one pair and one head at a time."""
    y, pairs = x.copy(), table.dim // 2
    turns = np.arange(len(x))[:, None].repeat(pairs, 1) if turns is None else turns
    for i in range(pairs):
        angle = turns[:, i : i + 1] * table.base ** (-2 * i / table.dim)
        a, b = (i, i + pairs) if pairing == "half" else (2 * i, 2 * i + 1)
        y[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        y[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
    return y


def attention(op, w, x, values=None, turns=None):
    """Multi-head attention of rows x, by its definition."""
    width = op.value_width

    def heads(role, count, rows, dim):
        y = rows @ w[role].T + w.get(f"{role}_bias", 0)
        if op.qk_norm and op.qk_norm.full_width and role != "v":
            y = normed(y, w[f"{role}_norm"] + op.qk_norm.offset)
        return y.reshape(len(x), count, dim)

    def placed(y, role):
        norm = op.qk_norm if op.qk_norm and not op.qk_norm.full_width else None
        gain = w[f"{role}_norm"] + norm.offset if norm else None
        if norm and not norm.after_rope:
            y = normed(y, gain)
        if op.rope:
            y = rotated(y, op.rope, op.pairing, turns)
        return normed(y, gain) if norm and norm.after_rope else y

    q = heads("q", op.heads, x, op.head_dim * (1 + op.output_gate))
    q, gate = q[..., : op.head_dim], q[..., op.head_dim :]
    q, k = placed(q, "q"), placed(heads("k", op.kv_heads, x, op.head_dim), "k")
    v = heads("v", op.kv_heads, x if values is None else values, width)
    v = (v if op.value_norm is None else normed(v)) * op.value_scale
    out = np.zeros((len(x), op.heads, width))
    for h in range(op.heads):
        key, value = k[:, h * op.kv_heads // op.heads], v[:, h * op.kv_heads // op.heads]
        for t in range(len(x)):
            first = max(0, t - op.window + 1) if op.window else 0
            s = key[first : t + 1] @ q[t, h] * (op.scale or op.head_dim**-0.5)
            s = op.soft_cap * np.tanh(s / op.soft_cap) if op.soft_cap else s
            p = np.exp(s)
            p /= p.sum() + (np.exp(w["sinks"][h]) if op.sinks else 0)
            out[t, h] = p @ value[first : t + 1]
    out = out * sigmoid(gate) if op.output_gate else out
    if op.gate:
        factor = FUNCTIONS[op.gate.function](x @ w["gate"].T)
        out = out * factor.reshape(len(x), op.heads, -1)
    merged = out.reshape(len(x), -1)
    merged = merged if op.output_norm is None else normed(merged, w["output_norm"])
    return merged @ w["o"].T + w.get("o_bias", 0)


BASE = {"width": 24, "heads": 6, "kv_heads": 2, "head_dim": 8}
TABLE, PARTIAL = RopeTable(100.0, 8), RopeTable(100.0, 4)
INDEXER = Indexer(2, 8, 16, 2, 1, EPS)
OPTIONS = {
    "plain": {},
    "rope": {"rope": TABLE},
    "interleaved": {"rope": TABLE, "pairing": "interleaved"},
    "partial rotary": {"rope": PARTIAL},
    "narrow values": {"value_dim": 5},
    "window": {"window": 6},
    "scale and cap": {"scale": 0.5, "soft_cap": 1.5},
    "sinks": {"sinks": True},
    "biases": {"biased": True, "output_biased": True},
    "bias of q and v": {"biased": ("q", "v")},
    "norm of heads": {"rope": TABLE, "qk_norm": QKNorm(EPS)},
    "norm with offset": {"rope": TABLE, "qk_norm": QKNorm(EPS, 1.0)},
    "norm after rope": {"rope": PARTIAL, "qk_norm": QKNorm(EPS, after_rope=True)},
    "norm of the width": {"rope": TABLE, "qk_norm": QKNorm(EPS, full_width=True), "biased": True},
    "value norm": {"value_norm": EPS},
    "value scale": {"value_scale": 0.7},
    "output gate": {"output_gate": True, "rope": TABLE, "qk_norm": QKNorm(EPS), "biased": True},
    "softplus gate": {"gate": AttentionGate()},
    "sigmoid gate": {"gate": AttentionGate("sigmoid"), "value_dim": 5},
    "gate a head": {"gate": AttentionGate("softplus", per_head=True)},
    "both gates": {"gate": AttentionGate(), "output_gate": True},
    "value input": {"value_input": True},
    "norm of all outputs": {"output_norm": EPS, "value_dim": 5},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_is_its_formula(name):
    op = Attention(**BASE | OPTIONS[name])
    weights = weights_for(op, seed=1)
    rng = np.random.default_rng(2)
    rows = {"x": rng.standard_normal((ROWS, 24))}
    if op.value_input:
        rows["values"] = rng.standard_normal((ROWS, 24))
    expected = attention(op, plain(op, weights), rows["x"], rows.get("values"))
    np.testing.assert_allclose(run(op, weights, rows), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output_gate": True, "value_dim": 4}, "value_dim is 4; .* a gate is as wide"),
        ({"output_gate": True, "qk_norm": QKNorm(EPS, full_width=True)}, "queries and their gates"),
        ({"biased": ("q", "w")}, "biased is .*each of which is one of q, k, v"),
        ({"kv_heads": 4}, "kv_heads is 4, .*heads is 6; .* kv_heads divides heads"),
        ({"shares_kv": True, "value_input": True}, "a layer without values takes no row"),
        ({"sections": Sections((2, 1, 1)), "rope": TABLE, "indexer": INDEXER}, "an indexer goes"),
        ({"shares_kv": True, "indexer": INDEXER}, "an indexer goes with earlier keys"),
    ],
)
def test_attention_that_cannot_be_is_refused(options, words):
    op = Attention(**BASE | options)
    given = {"x": np.zeros((1, 24))}
    given |= {"turns": np.zeros((1, 3), np.int32)} if op.sections else {}
    given |= {"values": np.zeros((1, 24))} if op.value_input else {}
    with pytest.raises(GraphError, match=words):
        run(op, {}, given)


def test_sections_turn_each_pair_by_the_position_of_its_axis():
    op = Attention(**BASE, rope=TABLE, sections=Sections((2, 1, 1)))
    weights, rng = weights_for(op, seed=1), np.random.default_rng(2)
    x, turns = rng.standard_normal((ROWS, 24)), rng.integers(0, 50, (ROWS, 3), np.int32)
    found = run(op, weights, {"x": x, "turns": turns})
    by_pair = turns[:, [0, 0, 1, 2]]
    w = plain(op, weights)
    np.testing.assert_allclose(found, attention(op, w, x, turns=by_pair), atol=1e-6)
    alike = np.arange(ROWS, dtype=np.int32)[:, None].repeat(3, 1)
    np.testing.assert_allclose(
        run(op, weights, {"x": x, "turns": alike}), attention(op, w, x), atol=1e-6
    )


LATENT = LatentAttention(24, 3, latent=10, nope_dim=6, rope_dim=4, value_dim=5, eps=EPS, scale=0.3)
LATENTS = {
    "plain": LATENT,
    "rotated": replace(LATENT, rope=PARTIAL),
    "half": replace(LATENT, rope=PARTIAL, pairing="half"),
    "compressed queries": replace(LATENT, rope=PARTIAL, query_latent=7),
    "biases": replace(LATENT, query_latent=7, biased=True, output_biased=True),
    "bias without compression": replace(LATENT, biased=True),
}


@pytest.mark.parametrize("name", LATENTS)
def test_latent_attention_is_its_expanded_form(name):
    """Keys and values of every head from the latent, then ordinary attention."""
    op = LATENTS[name]
    weights = weights_for(op, seed=5)
    w, x = plain(op, weights), np.random.default_rng(6).standard_normal((ROWS, 24))
    q = x
    if op.query_latent:
        q = normed(x @ w["q_a"].T + w.get("q_a_bias", 0), w["q_a_norm"])
    q = (q @ w["q"].T).reshape(ROWS, 3, 10)
    joint = x @ w["kv_a"].T + w.get("kv_a_bias", 0)
    latent, key = normed(joint[:, :10], w["kv_a_norm"]), joint[:, None, 10:]
    q_rope = q[..., 6:]
    if op.rope:
        q_rope, key = (rotated(y, op.rope, op.pairing) for y in (q_rope, key))
    out = np.zeros((ROWS, 3, 5))
    for h in range(3):
        keys = np.concatenate([latent @ w["k_b"][h], key[:, 0]], axis=1)
        query = np.concatenate([q[:, h, :6], q_rope[:, h]], axis=1)
        for t in range(ROWS):
            p = np.exp(keys[: t + 1] @ query[t] * 0.3)
            out[t, h] = p / p.sum() @ (latent[: t + 1] @ w["v_b"][h].T)
    expected = out.reshape(ROWS, -1) @ w["o"].T + w.get("o_bias", 0)
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=1e-6)
