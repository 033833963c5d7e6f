"""The vectors of the engine specification, and our graphs beside the code that gives them.

`recipes` computes what the specification says, bit for bit, as its hashes show. A graph of ours
evaluated in float64 is within float32's rounding of that, and so is the contract.
"""

from __future__ import annotations

import numpy as np
import pytest
import recipe_attention as attention
import recipes
from recipes import F32, fnv, synthetic

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.ir import Builder, ops
from cortiq.ir.graph import Value
from cortiq.ir.layers import Attention, ShortConv
from cortiq.ir.layers.attention import AttentionGate, QKNorm
from cortiq.numerics import norms, rope_scaling
from cortiq.numerics.layouts import Weight
from cortiq.numerics.rope import RopeTable
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.ideal import evaluate

EPS = 1e-6
CLOSE = 2e-6
"""Largest difference, over the largest output."""


def steps(count):
    return np.arange(count, dtype=F32)


def test_the_hash_is_that_of_the_specification():
    assert fnv(np.ones(1, F32)) == "4b72477f9c5c2f98"


# The graphs, of primitives: what a layer of each kind stands for.


def linear(b, x, name, out):
    return b.add(ops.MatMul(x.type.shape[-1], out), x, name=name, weights={"weight": name})


def split(b, x, *widths):
    edges = np.cumsum([0, *widths])
    cuts = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    return [b.add(ops.Slice(*cut), x, name=f"{x.name}.{cut[0]}") for cut in cuts]


def heads(b, x, count):
    shape = (count, x.type.shape[-1] // count)
    return b.add(ops.Reshape(shape), x, name=f"{x.name}.heads")


def activation(b, x, function):
    return b.add(ops.Activation(function), x, name=f"{x.name}.{function}")


def conv_silu(b, x, name, kernel):
    op = ops.CausalConv(x.type.shape[0], kernel)
    slots = {"ring": f"{name}.ring"}
    return activation(b, b.add(op, x, name=name, weights={"weight": name}, slots=slots), "silu")


def unit_heads(b, q, k, count):
    """Unit queries over √dim, and unit keys."""
    q, k = (heads(b, x, count) for x in (q, k))
    dim = q.type.shape[1]
    q, k = (b.add(ops.L2Norm(dim, 1e-6), x, name=f"{x.name}.unit") for x in (q, k))
    return b.add(ops.Scale(dim**-0.5), q, name=f"{q.name}.scaled"), k


def gated_output(b, o, gate, function):
    """RMSNorm of each head times f(gate), and the last projection."""
    weights = {"weight": "norm"}
    o = b.add(ops.RMSNorm(o.type.shape[1], EPS), o, name="normed", weights=weights)
    gate = activation(b, heads(b, gate, o.type.shape[0]), function)
    o = b.add(ops.Multiply(), o, gate, name="gated")
    o = b.add(ops.Reshape((int(np.prod(o.type.shape)),)), o, name="merged")
    return linear(b, o, "out", b.values["x"].shape[0])


def gated_delta_net(b, x, count, key_heads, dk, dv):
    keys, values = key_heads * dk, count * dv
    qkv = conv_silu(b, linear(b, x, "qkv", 2 * keys + values), "conv", 4)
    q, k, v = split(b, qkv, keys, keys, values)
    q, k = unit_heads(b, q, k, key_heads)
    a = b.add(ops.Bias(count), linear(b, x, "a", count), name="a.dt", weights={"bias": "dt"})
    a = activation(b, a, "softplus")
    rate = ops.Gain(count, form="negative_exp")
    a = activation(b, b.add(rate, a, name="rate", weights={"weight": "A_log"}), "exp")
    beta = activation(b, linear(b, x, "b", count), "sigmoid")
    rule = ops.DeltaRule(count, dk, dv, key_heads)
    slots = {"state": "state"}
    o = b.add(rule, q, k, heads(b, v, count), a, beta, name="delta", slots=slots)
    return gated_output(b, o, linear(b, x, "z", values), "silu")


def kimi_delta(b, x, count, dk, dv, lower_bound):
    q, k = (conv_silu(b, linear(b, x, n, count * dk), f"conv_{n}", 3) for n in "qk")
    v = conv_silu(b, linear(b, x, "v", count * dv), "conv_v", 3)
    q, k = unit_heads(b, q, k, count)
    f = linear(b, linear(b, x, "f_a", 3), "f_b", count * dk)
    f = b.add(ops.Bias(count * dk), f, name="f.dt", weights={"bias": "dt"})
    f = heads(b, f, count)
    if lower_bound is None:
        f = activation(b, f, "softplus")
        rate = ops.Gain(count, "head", "negative_exp")
        f = b.add(rate, f, name="rate", weights={"weight": "A_log"})
    else:
        rate = ops.Gain(dk, "value", "exp")
        f = b.add(rate, f, name="rate", weights={"weight": "A_log"})
        f = b.add(ops.Scale(lower_bound), activation(b, f, "sigmoid"), name="bounded")
    beta = activation(b, linear(b, x, "b", count), "sigmoid")
    slots, rule = {"state": "state"}, ops.DeltaRule(count, dk, dv)
    alpha, v = activation(b, f, "exp"), heads(b, v, count)
    o = b.add(rule, q, k, v, alpha, beta, name="delta", slots=slots)
    return gated_output(b, o, linear(b, linear(b, x, "g_a", 3), "g_b", count * dv), "sigmoid")


def short_conv(b, x):
    roles = {role: role for role in ("in", "conv", "out")}
    return b.add(ShortConv(8, 3), x, name="y", weights=roles, slots={"ring": "ring"})


def attend(b, x, **options):
    op = Attention(
        24, 4, 2, 16, rope=RopeTable(1e4, 8), scale=0.25, qk_norm=QKNorm(EPS), biased=True,
        **options,
    )  # fmt: skip
    roles = {role: role for role in op.weight_shapes()}
    position = Value("position", b.values["position"])
    return b.add(op, x, position, name="y", weights=roles, slots={"kv": "kv"})


def close(build, weights, x, expected):
    """The graph in float64, and as the contract computes it, beside the recipe's outputs."""
    b = Builder(context=64)
    b.input("token")
    b.input("position")
    y = build(b, b.input("x", x.shape[1:], "f32"))
    b.graph("trunk", (y.name,))
    program = b.program()
    program = program.with_layouts(dict.fromkeys(program.weights, "f32"))
    bound = {n: Weight.from_floats(np.atleast_2d(weights[n])) for n in program.weights}
    tokens = [0] * len(x)
    exact = evaluate(program, bound, tokens, [y.name], inputs={"x": x.astype(np.float64)})[y.name]
    size = np.abs(expected).max()
    assert 0 < np.abs(exact - expected).max() <= CLOSE * size
    executable = ReferenceBackend().compile(program, bound, CompileOptions(threads=1))
    state = executable.open(len(x))
    want = Named(y.name)
    rows = [Row(state, i, 0, (want,), {"x": row}) for i, row in enumerate(x)]
    ours = np.array([row[want] for row in executable.forward(Batch(rows)).result().rows])
    return np.linalg.norm(ours - exact) / np.linalg.norm(exact)


def test_gated_delta_net():
    """The fixture of the specification, drawn again."""
    r = np.random.RandomState(7)
    shapes = {"qkv": (44, 16), "z": (20, 16), "a": (4, 16), "b": (4, 16)}
    w = {name: r.randn(*shape) * 0.2 for name, shape in shapes.items()}
    w |= {"A_log": r.rand(4) * 2, "dt": r.randn(4) * 0.3, "conv": r.randn(44, 4) * 0.3}
    w |= {"norm": 1 + 0.2 * r.rand(5), "out": r.randn(16, 20) * 0.2}
    x = (r.randn(7, 16) * 0.5).astype(F32)
    w = {name: values.astype(F32) for name, values in w.items()}
    outputs, ring, state = recipes.gated_delta_net(w, x, 4, 2, 6, 5, EPS)
    assert (fnv(outputs), fnv(ring, state)) == ("2f6e511615a6afdd", "2739fc0450e94d04")
    assert close(lambda b, x: gated_delta_net(b, x, 4, 2, 6, 5), w, x, outputs) < 1e-5


@pytest.mark.parametrize(
    ("salt", "lower_bound", "hashes"),
    [
        (40, None, ("81418954d167cace", "b72f4b23ba8abcfb")),
        (41, -5.0, ("64466f1cf2b49a23", "b96845790a9e3d9c")),
    ],
)
def test_kimi_delta_attention(salt, lower_bound, hashes):
    """A decay per channel; A_log per head, or per dimension with bounded decays."""
    matrices = {
        "q": (8, 6, 1), "k": (8, 6, 2), "v": (8, 6, 3), "f_a": (3, 6, 7), "f_b": (8, 3, 8),
        "b": (2, 6, 10), "g_a": (3, 6, 11), "g_b": (8, 3, 12), "out": (6, 8, 13),
    }  # fmt: skip
    w = {n: synthetic((r, c), s, 31, 17, 101, 0.6) for n, (r, c, s) in matrices.items()}
    vectors = {"conv_q": ((8, 3), 4), "conv_k": ((8, 3), 5), "conv_v": ((8, 3), 6)}
    vectors |= {"dt": ((8,), 9), "A_log": ((2 if salt == 40 else 4,), salt)}
    w |= {n: synthetic(shape, s, 13, 7, 89, 0.8) for n, (shape, s) in vectors.items()}
    w["norm"] = F32(1) + F32(0.1) * steps(4)
    x = steps(36).reshape(6, 6) / F32(32) - F32(0.5)
    outputs, rings, state = recipes.kimi_delta(w, x, 2, 4, 4, EPS, lower_bound)
    assert (fnv(outputs), fnv(*rings, state)) == hashes
    assert close(lambda b, x: kimi_delta(b, x, 2, 4, 4, lower_bound), w, x, outputs) < 1e-5


def test_gated_short_convolution():
    w = {n: synthetic((r, 8), s, 11, 5, 89, 0.5) for n, r, s in (("in", 24, 1), ("out", 8, 2))}
    taps = (np.arange(24) * 7 % 13).astype(F32) / F32(13) - F32(0.5)
    w["conv"] = (taps * F32(0.8)).reshape(8, 3)
    x = steps(48).reshape(6, 8) / F32(16) - F32(1)
    outputs, ring = recipes.short_conv(w, x)
    assert (fnv(outputs), fnv(ring)) == ("bd2f9c31acba366e", "f1b612b6aee768fa")
    assert close(short_conv, w, x, outputs) < 1e-5


ATTENTION = {
    "plain": ({}, {}, "50d0824460a1096d", "4cc1b54f359c1696"),
    "window": ({"window": 3}, {"window": 3}, "87bbe6c1751fe09a", "56c36110125512b4"),
    "soft cap": ({"cap": 5.0}, {"soft_cap": 5.0}, "b84988a9416439e2", "076d64d4b8d6dcb8"),
    "output gate": ({}, {"output_gate": True}, "4fd50191226fd9b5", "f0eb3f8ea70e6212"),
    "a gate a head": ({}, {"gate": AttentionGate()}, "2b5669116f592ce2", "4cc1b54f359c1696"),
    "a gate an element, value norm": (
        {}, {"gate": AttentionGate(), "value_norm": EPS}, "43220ef11e2f8c20", "4cc1b54f359c1696",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    how, options, out, importance = ATTENTION[name]
    rows = {"q": 128 if "output_gate" in options else 64, "k": 32, "v": 32}
    matrices = [*((n, r, 24) for n, r in rows.items()), ("o", 24, 64)]
    if "gate" in options:
        matrices.append(("gate", 64 if "value_norm" in options else 4, 24))
    w = {n: synthetic((r, c), s, 13, 7, 97, 0.4) for s, (n, r, c) in enumerate(matrices, 1)}
    w |= {"q_norm": F32(0.9) + F32(0.01) * steps(16), "k_norm": F32(1.1) - F32(0.01) * steps(16)}
    for part, factor in (("q", 0.01), ("k", -0.02), ("v", 0.005)):
        w[f"{part}_bias"] = F32(factor) * steps(rows[part])
    if "value_norm" in options:
        w["v_norm"] = np.ones(1, F32)
    x = (np.arange(168).reshape(7, 24) * 5 % 37).astype(F32) / F32(37) - F32(0.5)
    table = attention.frequencies(8, 1e4)
    found = attention.attention(w, x, 4, 2, 16, table=table, scale=0.25, eps=EPS, **how)
    assert (fnv(found[0]), fnv(found[1])) == (out, importance)
    if name == "a gate a head":  # the layer has one an element: those of a head are the same
        w["gate"] = np.repeat(w["gate"], 16, axis=0)
    # The contract quantises q, k and v.
    assert close(lambda b, x: attend(b, x, **options), w, x, found[0]) < 2e-3


def test_norms():
    i = np.arange(48)
    x = ((i * 17 % 23).astype(F32) / F32(23) - F32(0.4)) * F32(3)
    w = F32(0.5) + steps(48) / F32(64)
    assert fnv(attention.norm(x, w, EPS)) == "2797c60c0deb7b2e"
    assert fnv(attention.norm(x, F32(1) + w, EPS)) == "34267bee3e247a06"
    assert fnv(attention.wide_norm(x, w, EPS)) == "c3d236685e61cdcd"
    assert fnv(attention.head_norm(x, w, EPS)) == "b11a90c394975f44"
    for theirs, ours in (
        (attention.wide_norm(x, w, EPS), w),
        (attention.norm(x, w + 1, EPS), w + 1),
    ):
        found = norms.rms_norm(x[None], ours, EPS)[0]
        np.testing.assert_allclose(found, theirs, rtol=norms.RMS_NORM_MAX_ERROR)


def test_rotary_frequencies():
    plain, scaled = attention.frequencies(128, 1e6), attention.yarn(64, 5e5, 128.0, 8192.0)
    assert (fnv(plain), fnv(scaled)) == ("b887ea2d8c5fcba4", "e4fecbdbdc14b30e")
    tables = RopeTable(1e6, 128), RopeTable(5e5, 64, rope_scaling.Yarn(128.0, 8192))
    for theirs, table in zip((plain, scaled), tables, strict=True):
        np.testing.assert_allclose(np.array(table.frequencies, float), theirs, rtol=2e-6)
