"""Recurrent mixers against plain float64 recurrences, every option by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from one_layer import EPS, FUNCTIONS, normed, plain, run, sigmoid, softplus, weights_for

from cortiq.errors import GraphError
from cortiq.ir import Builder
from cortiq.ir.layers import KDA, RGLRU, GatedDeltaNet, Mamba2
from cortiq.numerics.layouts import Weight

ROWS, WIDTH = 20, 24


def rows(seed=2):
    return np.random.default_rng(seed).standard_normal((ROWS, WIDTH))


def convolved(x, taps, function, bias=0.0):
    """Each row and the rows before it under the taps, the newest under the last."""
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, x.shape[1])), x])
    windows = np.stack([padded[t : t + len(x)] for t in range(taps.shape[1])], axis=-1)
    sums = (windows * taps).sum(-1) + bias
    return sums if function == "plain" else FUNCTIONS[function](sums)


def as_weight(values):
    return Weight.from_floats(np.atleast_2d(values).astype(np.float32))


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def delta_rule(q, k, v, alpha, beta):
    """o of every row; α [rows, heads, key_dim], keys repeated for the heads that share them."""
    state = np.zeros((v.shape[1], q.shape[2], v.shape[2]))
    out = np.zeros(v.shape)
    for t in range(len(v)):
        for h in range(v.shape[1]):
            kept = state[h] * alpha[t, h][:, None]
            found = kept.T @ k[t, h]
            state[h] = kept + np.outer(k[t, h], beta[t, h] * (v[t, h] - found))
            out[t, h] = state[h].T @ q[t, h]
    return out


def net(op, w, x):
    """A gated delta net by its definition, weights already apart."""
    keys = op.key_heads * op.key_dim
    joint = convolved(x @ w["qkv"].T, w["conv"], op.activation)
    q, k, v = joint[:, :keys], joint[:, keys : 2 * keys], joint[:, 2 * keys :]
    q, k = (unit(y.reshape(ROWS, op.key_heads, -1)).repeat(op.heads // op.key_heads, 1)
            for y in (q, k))  # fmt: skip
    alpha = np.exp(-np.exp(w["A_log"]) * softplus(x @ w["a"].T + w["dt_bias"]))
    alpha = alpha[..., None].repeat(op.key_dim, -1)
    v = v.reshape(ROWS, op.heads, -1)
    y = delta_rule(q * op.key_dim**-0.5, k, v, alpha, sigmoid(x @ w["b"].T))
    y = normed(y, w["norm"]).reshape(ROWS, -1) * FUNCTIONS["silu"](x @ w["z"].T)
    return y @ w["out"].T


NET = GatedDeltaNet(WIDTH, 4, 2, key_dim=6, value_dim=5, kernel=4, eps=EPS)


@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_gated_delta_net_is_its_recurrence(activation):
    op = replace(NET, activation=activation)
    weights, x = weights_for(op, seed=1), rows()
    expected = net(op, plain(op, weights), x)
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=1e-6)


def test_a_decay_may_lie_in_the_file_as_it_is():
    bounded = replace(KIMI, decay_bound=-5.0)
    for op, whole in ((NET, net), (KIMI, None), (SPACE, None), (bounded, None)):
        weights, x = weights_for(op, seed=6), rows()
        given = plain(op, weights)["A_log"]
        decays = as_weight(-np.exp(given))
        stored = {**weights, "A": decays}
        expected = run(op, weights, {"x": x})
        found = run(replace(op, decay_form="plain"), stored, {"x": x})
        np.testing.assert_allclose(found, expected, atol=1e-6)
        if whole is not None:
            np.testing.assert_allclose(found, whole(op, plain(op, weights), x), atol=1e-6)


def test_tiled_value_heads_have_keys_in_turn():
    weights, x = weights_for(NET, seed=1), rows()
    w = plain(NET, weights)
    order = [
        0,
        2,
        1,
        3,
    ]  # head h of the tiled net is head order[h] of the other: same key, same rows
    heads = np.array(order)
    values = (heads[:, None] * NET.value_dim + np.arange(NET.value_dim)).ravel()
    keys = NET.key_heads * NET.key_dim
    qkv = np.concatenate([np.arange(2 * keys), 2 * keys + values])
    moved = {
        **w, "qkv": w["qkv"][qkv], "conv": w["conv"][qkv], "z": w["z"][values],
        "a": w["a"][heads], "b": w["b"][heads], "A_log": w["A_log"][heads],
        "dt_bias": w["dt_bias"][heads], "out": w["out"][:, values],
    }  # fmt: skip
    given = {role: as_weight(array) for role, array in moved.items()}
    found = run(replace(NET, tiled=True), given, {"x": x})
    np.testing.assert_allclose(found, net(NET, w, x), atol=1e-6)


def test_grouped_matrices_hold_the_rows_of_each_key_head_in_turn():
    op = replace(NET, grouped=("qkvz", "ba"))
    weights, x = weights_for(op, seed=1), rows()
    w = plain(op, weights)
    groups = w["qkvz"].reshape(2, 6 + 6 + 10 + 10, WIDTH)
    pieces = [groups[:, a:b].reshape(-1, WIDTH) for a, b in ((0, 6), (6, 12), (12, 22), (22, 32))]
    w["qkv"], w["z"] = np.concatenate(pieces[:3]), pieces[3]
    w["b"], w["a"] = w["ba"].reshape(2, 2, 2, WIDTH).swapaxes(0, 1).reshape(2, 4, WIDTH)
    np.testing.assert_allclose(run(op, weights, {"x": x}), net(op, w, x), atol=1e-6)


KIMI = KDA(WIDTH, 3, key_dim=6, value_dim=5, kernel=3, eps=EPS, decay_rank=4, gate_rank=7)
KIMIS = {
    "decay a head": KIMI,
    "decay a value": replace(KIMI, decay_per="value"),
    "decay a channel": replace(KIMI, decay_per="channel"),
    "bounded decay": replace(KIMI, decay_bound=-5.0),
    "one gate matrix": replace(KIMI, gate_rank=0, activation="relu2"),
}


@pytest.mark.parametrize("name", KIMIS)
def test_kimi_delta_attention_is_its_recurrence(name):
    op = KIMIS[name]
    weights, x = weights_for(op, seed=3), rows()
    w = plain(op, weights)
    projected = np.concatenate([x @ w[role].T for role in "qkv"], axis=1)
    joint = convolved(projected, w["conv"], op.activation)
    q, k = (unit(joint[:, i : i + 18].reshape(ROWS, 3, 6)) for i in (0, 18))
    f = (x @ w["f_a"].T @ w["f_b"].T + w["dt_bias"]).reshape(ROWS, 3, 6)
    log = w["A_log"][:, None] if op.decay_per == "head" else w["A_log"].reshape(-1, 6)
    decay = -np.exp(log) * softplus(f)
    if op.decay_bound:
        decay = op.decay_bound * sigmoid(np.exp(log) * f)
    v, beta = joint[:, 36:].reshape(ROWS, 3, 5), sigmoid(x @ w["b"].T)
    y = delta_rule(q * 6**-0.5, k, v, np.exp(decay), beta)
    gate = x @ w["g_a"].T @ w["g_b"].T if op.gate_rank else x @ w["g"].T
    y = normed(y, w["norm"]).reshape(ROWS, -1) * sigmoid(gate)
    np.testing.assert_allclose(run(op, weights, {"x": x}), y @ w["o"].T, atol=1e-6)


SPACE = Mamba2(WIDTH, 4, head_dim=5, state_dim=6, groups=2, kernel=4, eps=EPS)
SPACES = {
    "plain": SPACE,
    "one group": replace(SPACE, groups=1),
    "norm in groups": replace(SPACE, norm_groups=2),
    "biases": replace(SPACE, biased=True),
    "no bias of the convolution": replace(SPACE, conv_biased=False, activation="relu"),
    "bounded steps": replace(SPACE, step_low=0.4, step_high=0.9),
    "steps bounded below": replace(SPACE, step_low=0.7),
}


@pytest.mark.parametrize("name", SPACES)
def test_mamba_2_is_its_recurrence(name):
    op = SPACES[name]
    weights, x = weights_for(op, seed=4), rows()
    w = plain(op, weights)
    joint = x @ w["in"].T + w.get("in_bias", 0)
    z, xbc, dt = joint[:, :20], joint[:, 20:-4], joint[:, -4:]
    xbc = convolved(xbc, w["conv"], op.activation, w.get("conv_bias", 0))
    values, rest = xbc[:, :20].reshape(ROWS, 4, 5), xbc[:, 20:].reshape(ROWS, 2, op.groups, 6)
    b, c = (rest[:, i].repeat(4 // op.groups, 1) for i in (0, 1))
    dt = np.clip(softplus(dt + w["dt_bias"]), op.step_low, op.step_high)
    state, y = np.zeros((4, 6, 5)), np.zeros((ROWS, 4, 5))
    for t in range(ROWS):
        for h in range(4):
            kept = state[h] * np.exp(-np.exp(w["A_log"][h]) * dt[t, h])
            state[h] = kept + np.outer(b[t, h], dt[t, h] * values[t, h])
            y[t, h] = state[h].T @ c[t, h] + w["D"][h] * values[t, h]
    y = y.reshape(ROWS, 20) * FUNCTIONS["silu"](z)
    y = normed(y.reshape(ROWS, op.norm_groups, -1)).reshape(ROWS, 20) * w["norm"]
    expected = y @ w["out"].T + w.get("out_bias", 0)
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (replace(NET, key_heads=3), "key_heads is 3, .*heads is 4; .* key_heads divides heads"),
        (replace(SPACE, groups=3), "groups is 3, .*heads is 4; .* groups divides heads"),
        (replace(SPACE, norm_groups=3), "norm_groups is 3, .* norm_groups divides the inner width"),
    ],
)
def test_a_mixer_that_cannot_be_is_refused(op, words):
    with pytest.raises(GraphError, match=words):
        run(op, {}, {"x": rows()})


def test_a_decay_of_an_unknown_kind_is_refused():
    with pytest.raises(GraphError, match="decay_per is 'row'; it takes one of head, value"):
        b = Builder(context=8)
        b.add(replace(KIMI, decay_per="row"), b.input("x", (KIMI.width,), "f32"), name="y")


@pytest.mark.parametrize("heads", [1, 4])
def test_a_real_gated_recurrence_is_its_formula(heads):
    """The first row enters whole: there is no state that could leave it room."""
    op = RGLRU(WIDTH, 32, heads, kernel=3, activation="silu")
    weights, x = weights_for(op, seed=8), rows()
    w = plain(op, weights)
    u = convolved(x @ w["x"].T + w["x_bias"], w["conv"], "plain", w["conv_bias"])
    parts = u.reshape(ROWS, heads, -1)
    given, rate = (
        sigmoid(np.einsum("rhi,hoi->rho", parts, w[role]).reshape(ROWS, -1) + w[f"{role}_bias"])
        for role in ("input", "decay")
    )
    a = np.exp(-8 * rate * softplus(w["rate"]))
    state, found = np.zeros(32), []
    for t in range(ROWS):
        size = np.sqrt(1 - a[t] ** 2) if t else 1.0
        state = a[t] * state + size * given[t] * u[t]
        found.append(state)
    gate = FUNCTIONS["silu"](x @ w["y"].T + w["y_bias"])
    expected = (np.array(found) * gate) @ w["out"].T + w["out_bias"]
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=1e-6)
