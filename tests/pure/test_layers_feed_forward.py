"""MLPs and mixtures of them against plain float64 formulas, every option by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from one_layer import EPS, FUNCTIONS, normed, plain, run, sigmoid, softmax, weights_for

from cortiq.errors import GraphError
from cortiq.ir.layers import (
    MLP,
    AltUpCorrect,
    AltUpPredict,
    AttentionResidual,
    Blend,
    CentredNorm,
    GatedMLP,
    Gating,
    MoE,
    PerLayerGate,
    PerLayerInputs,
    RouterNorm,
    XieluMLP,
)
from cortiq.numerics.route import Router

ROWS = 30
OAI = Gating(limit=0.8, steepness=1.702, up_shift=1.0)
LATE = Gating(limit=0.2, late=True)
SITU = Gating(gate_cap=0.9, up_cap=0.6)


def rows(seed=2, width=24):
    return np.random.default_rng(seed).standard_normal((ROWS, width))


def joined(how, gate, up):
    """Gate and up as the definition of each way of joining says."""
    if how == OAI:
        gate, up = np.minimum(gate, 0.8), np.clip(up, -0.8, 0.8)
        return gate * sigmoid(1.702 * gate) * (up + 1)
    if how == SITU:
        return 0.9 * np.tanh(gate / 0.9) * sigmoid(gate) * 0.6 * np.tanh(up / 0.6)
    if how == Gating(limit=0.5):
        gate, up, how = np.minimum(gate, 0.5), np.clip(up, -0.5, 0.5), "silu"
    if how == LATE:
        return np.minimum(FUNCTIONS["silu"](gate), 0.2) * np.clip(up, -0.2, 0.2)
    return FUNCTIONS[how](gate) * up


WAYS = ["silu", "gelu_tanh", "gelu", "relu", "relu2", OAI, SITU, Gating(limit=0.5), LATE]


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_gated_mlp_is_its_formula(how, interleaved):
    op = GatedMLP(24, 40, how, biased=interleaved, interleaved=interleaved)
    weights, x = weights_for(op, seed=1), rows()
    w = plain(op, weights)
    if interleaved:
        both = x @ w["gate_up"].T + w["gate_up_bias"]
        gate, up = both[:, ::2], both[:, 1::2]
    else:
        gate, up = x @ w["gate"].T, x @ w["up"].T
    expected = joined(how, gate, up) @ w["down"].T + w.get("down_bias", 0)
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=1e-6)


@pytest.mark.parametrize("function", ["silu", "gelu_tanh", "gelu", "relu", "relu2"])
@pytest.mark.parametrize("biased", [False, True])
def test_mlp_is_its_formula(function, biased):
    op = MLP(24, 40, function, biased)
    weights, x = weights_for(op, seed=3), rows()
    w = plain(op, weights)
    inner = FUNCTIONS[function](x @ w["up"].T + w.get("up_bias", 0))
    expected = inner @ w["down"].T + w.get("down_bias", 0)
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=1e-6)


def test_mlp_of_xielu_is_its_formula():
    op = XieluMLP(24, 40)
    weights, x = weights_for(op, seed=4), rows()
    w = plain(op, weights)
    up, (p, n) = x @ w["up"].T, (np.logaddexp(0, w[f"alpha_{sign}"]) for sign in "pn")
    below = np.minimum(up, 0)
    bent = (w["beta"] + n) * (np.expm1(below) - below) + w["beta"] * up
    expected = (p * np.maximum(up, 0) ** 2 + bent) @ w["down"].T
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=1e-6)


def weights_of_experts(op, w, x):
    """Return the factor of every expert in every row, 0 for those not chosen."""
    if op.router_norm:
        x = normed(x, w.get("router_norm", 1)) * op.router_norm.factor
    scores = x @ w["router"].T + w.get("router_bias", 0)
    if op.router_cap:
        scores = op.router_cap * np.tanh(scores / op.router_cap)
    p = sigmoid(scores) if op.router.kind == "sigmoid" else softmax(scores)
    result = np.zeros(scores.shape)
    for row in range(len(x)):
        key = p[row] + w["bias"] if op.selection_bias else scores[row]
        key = np.where(w["mask"] != 0, key, -np.inf) if op.masked else key
        best = sorted(np.argsort(-key)[: op.router.top_k])
        best = [e for e in best if key[e] > -np.inf]
        chosen = softmax(scores[row, best]) if op.router.kind == "softmax_topk" else p[row, best]
        if op.router.renormalise:
            chosen = chosen / (chosen.sum() + op.router.denominator_floor)
        result[row, best] = chosen * op.router.routed_scaling
    return result * w.get("expert_scale", 1)


def mixture(op, w, x, routed=None):
    """Every expert on every row, weighted."""
    factor = weights_of_experts(op, w, x if routed is None else routed)
    inside = x @ w["latent_in"].T + w.get("latent_in_bias", 0) if op.latent else x
    total = 0
    for e in range(op.experts):

        def product(role, given, e=e):
            return given @ w[role][e].T + (w[f"{role}_bias"][e] if op.biased else 0)

        if op.interleaved:
            both = product("gate_up", inside)
            inner = joined(op.activation, both[:, ::2], both[:, 1::2])
        elif op.gated:
            inner = joined(op.activation, product("gate", inside), product("up", inside))
        else:
            inner = FUNCTIONS[op.activation](product("up", inside))
        total = total + factor[:, e : e + 1] * product("down", inner)
    if op.latent:
        total = total @ w["latent_out"].T + w.get("latent_out_bias", 0)
    return total + shared(op, w, x) if op.shared_inner else total


def shared(op, w, x):
    up = x @ w["shared_up"].T + w.get("shared_up_bias", 0)
    if op.gated:
        inner = joined(op.activation, x @ w["shared_gate"].T + w.get("shared_gate_bias", 0), up)
    else:
        inner = FUNCTIONS[op.activation](up)
    y = inner @ w["shared_down"].T + w.get("shared_down_bias", 0)
    return y * sigmoid(x @ w["shared_factor"].T) if op.shared_factor else y


BASE = MoE(24, 12, 6, Router(2, renormalise=True))
SIGMOID = Router(3, "sigmoid", renormalise=True, denominator_floor=0.01, routed_scaling=1.5)
MIXTURES = {
    "plain": BASE,
    "no renormalising": replace(BASE, router=Router(2)),
    "softmax of the chosen": replace(BASE, router=Router(3, "softmax_topk")),
    "sigmoid with floor and scaling": replace(BASE, router=SIGMOID, selection_bias=True),
    "mask": replace(BASE, masked=True),
    "biases": replace(BASE, biased=True, router_biased=True),
    "interleaved": replace(BASE, interleaved=True, biased=True, activation=OAI),
    "not interleaved": replace(BASE, activation=OAI),
    "plain experts": replace(BASE, gated=False, activation="relu2", shared_inner=10),
    "latent": replace(BASE, latent=8, gated=False, activation="relu2", latent_biased=True),
    "latent, gated": replace(BASE, latent=8, shared_inner=10),
    "shared": replace(BASE, shared_inner=10, shared_biased=True),
    "shared with a factor": replace(BASE, shared_inner=10, shared_factor=True),
    "scale of experts": replace(BASE, expert_scale=True),
    "capped scores": replace(BASE, router_cap=0.7),
    "norm before the router": replace(BASE, router_norm=RouterNorm(EPS, 0.6)),
    "norm without weight": replace(BASE, router_norm=RouterNorm(EPS, weighted=False)),
    "input of the router": replace(BASE, router_input=True, router_norm=RouterNorm(EPS)),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixture_is_its_formula(name):
    op = MIXTURES[name]
    weights = weights_for(op, seed=7)
    if op.masked:
        weights["mask"].parts["raw"].view(np.float32)[0, [1, 4]] = 0
    given = {"x": rows(8)} | ({"h": rows(9)} if op.router_input else {})
    expected = mixture(op, plain(op, weights), *given.values())
    np.testing.assert_allclose(run(op, weights, given), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gated": False, "interleaved": True, "activation": "relu"}, "no gate to join"),
        ({"gated": False, "activation": OAI}, "no gate to join"),
        ({"shared_factor": True}, "there is a shared expert to multiply"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(options, words):
    with pytest.raises(GraphError, match=words):
        run(replace(BASE, **options), {}, {"x": rows()})


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.5, 0.9])
def test_blend_lies_between_its_inputs(fraction):
    a, b = rows(1), rows(2)
    found = run(Blend(fraction), {}, {"a": a, "b": b})
    np.testing.assert_allclose(found, (1 - fraction) * a + fraction * b, atol=1e-6)


def test_a_layer_norm_without_weights():
    x = 3 * rows(4) + np.arange(24) / 5  # rows whose mean is not 0
    middle = x - x.mean(-1, keepdims=True)
    expected = middle / np.sqrt((middle**2).mean(-1, keepdims=True) + 0.3)
    np.testing.assert_allclose(run(CentredNorm(24, 0.3), {}, {"x": x}), expected, atol=1e-6)


def test_per_layer_inputs_and_their_branch():
    op = PerLayerInputs(5, 24, 3, 8, EPS)
    weights, x = weights_for(op, seed=11), rows(12)
    tokens = np.arange(ROWS, dtype=np.int32) % 9
    w = plain(op, weights)
    looked_up = np.concatenate([w["table"], np.zeros((4, 24))])[tokens] * 8**0.5
    projected = normed((x @ w["projection"].T * 24**-0.5).reshape(ROWS, 3, 8), w["norm"])
    expected = (projected.reshape(ROWS, 24) + looked_up) * 2**-0.5
    given = {"ids": tokens, "x": x}
    np.testing.assert_allclose(run(op, weights, given), expected, atol=1e-6)
    gate = PerLayerGate(24, 3, 8, layer=1, activation="gelu_tanh")
    weights = weights_for(gate, seed=13)
    w = plain(gate, weights)
    inner = FUNCTIONS["gelu_tanh"](x @ w["gate"].T) * expected[:, 8:16]
    found = run(gate, weights, {"x": x, "given": expected})
    np.testing.assert_allclose(found, inner @ w["projection"].T, atol=1e-6)


@pytest.mark.parametrize("weighted", [True, False])
def test_attention_residuals_weigh_whole_rows_by_scores_of_normed_ones(weighted):
    op = AttentionResidual(3, 24, 0.3, weighted)
    weights, given = weights_for(op, seed=41), [rows(seed) * 2 for seed in (42, 43, 44)]
    w, stack = plain(op, weights), np.stack(given, axis=1)
    unit = stack / np.sqrt((stack**2).mean(-1, keepdims=True) + 0.3)
    scores = (unit * w.get("norm", 1.0)) @ w["score"][0]
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = (shares[..., None] * stack).sum(1)
    found = run(op, weights, {f"row{n}": row for n, row in enumerate(given)})
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_a_norm_of_the_product_stands_before_the_last_matrix():
    op = GatedMLP(24, 35, "relu2", inner_norm=EPS)
    weights, x = weights_for(op, seed=23), rows(24)
    w = plain(op, weights)
    product = FUNCTIONS["relu2"](x @ w["gate"].T) * (x @ w["up"].T)
    expected = normed(product, w["inner_norm"]) @ w["down"].T
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=2e-6)


@pytest.mark.parametrize("deviations", [0.8, -0.3, 0.0])
def test_a_gate_keeps_what_exceeds_its_mean_by_some_deviations(deviations):
    op = GatedMLP(24, 35, "gelu_tanh", above=deviations)
    weights, x = weights_for(op, seed=21), rows(22) + 0.4
    w = plain(op, weights)
    gate, up = x @ w["gate"].T, x @ w["up"].T
    cut = gate.mean(-1, keepdims=True) + deviations * gate.std(-1, keepdims=True)
    expected = FUNCTIONS["gelu_tanh"](np.maximum(gate - cut, 0)) * up @ w["down"].T
    np.testing.assert_allclose(run(op, weights, {"x": x}), expected, atol=2e-6)


@pytest.mark.parametrize("scaled", [True, False])
def test_alternating_updates_are_their_formulas(scaled):
    n, width, active = 3, 24, 1
    predict = AltUpPredict(n, width, active, EPS)
    correct = AltUpCorrect(n, width, active, EPS, scaled)
    weights, streams = weights_for(predict, seed=31), rows(32, n * width).reshape(ROWS, n, width)
    w = plain(predict, weights)

    def routed(row, w):
        return np.tanh(normed(row, w["norm"]) / width @ w["router"].T)

    coefs = (routed(streams[:, active], w) @ w["coefs"].T).reshape(ROWS, n, n)
    predicted = streams + np.einsum("rij,rjw->riw", coefs, streams)
    found = run(predict, weights, {"x": streams})
    np.testing.assert_allclose(found, predicted, atol=3e-6)
    weights, row = weights_for(correct, seed=33), rows(34)
    w = plain(correct, weights)
    factors = 1 + routed(row, w) @ w["coefs"].T
    corrected = predicted + factors[..., None] * (row - predicted[:, active])[:, None]
    found = run(correct, weights, {"x": predicted, "row": row})
    np.testing.assert_allclose(found, corrected, atol=5e-6)
