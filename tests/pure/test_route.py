"""Expert routing: softmax, the choice and its ties, weights, the weighted sum."""

from __future__ import annotations

import numpy as np
import pytest
from floats import LIMIT, canonical, flush_to_zero, same_bits

from cortiq.errors import UnsupportedError
from cortiq.numerics import ideal
from cortiq.numerics.contract import F32
from cortiq.numerics.route import (
    ROUTER_KINDS,
    SOFTMAX_MAX_ERROR,
    Router,
    combine_experts,
    route,
    softmax,
)

RNG = np.random.default_rng(0)
SCORES = (RNG.standard_normal((200, 32)) * 3).astype(F32)
BIAS = (RNG.standard_normal(32) / 4).astype(F32)


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 5000])
def test_softmax_error(n):
    x = (np.random.default_rng(n).standard_normal((20, n)) * 4).astype(F32)
    exact = ideal.softmax(x)
    error = np.abs(softmax(x) - exact)[exact > 2.0**-39] / exact[exact > 2.0**-39]
    assert error.max() < SOFTMAX_MAX_ERROR
    assert n < 256 or error.max() > SOFTMAX_MAX_ERROR / 4


def test_masked_elements_are_excluded_not_multiplied():
    x = SCORES[:, :8].copy()
    allowed = np.array([1, 0, 1, 1, 0, 1, 1, 1], bool)
    masked = softmax(x, allowed)
    x[:, ~allowed] = 1e14
    assert same_bits(softmax(x, allowed), masked)
    assert not masked[:, ~allowed].view(np.uint32).any()
    np.testing.assert_allclose(masked, ideal.softmax(x, allowed), atol=1e-6)
    assert not softmax(x, np.zeros(8, bool)).any()


def test_softmax_of_one_element_and_of_equals():
    assert same_bits(softmax(np.array([[3.5]], F32)), np.ones((1, 1), F32))
    assert same_bits(softmax(np.full((1, 4), F32(-9))), np.full((1, 4), F32(0.25)))


KINDS = tuple(kind for kind in ROUTER_KINDS if kind != "sparse_mixer")
"""Those without an option of their own."""


@pytest.mark.parametrize("margin", [0.0, 0.02, 0.7, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_a_sparse_mixer_equals_its_float64_twin(margin, masked):
    router = Router(3, "sparse_mixer", margin=margin)
    mask = (np.arange(SCORES.shape[-1]) % 3 != 0).astype(np.float32) if masked else None
    indices, weights = route(SCORES, router, mask=mask)
    expected, ideals = ideal.route(SCORES, router, mask=mask)
    assert (indices == expected).all()
    assert np.abs(weights - ideals).max() < 1e-6 and (weights > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("renormalise", [False, True])
def test_route_equals_its_float64_twin(kind, bias, renormalise):
    router = Router(4, kind, renormalise, 1e-20, 2.5)
    indices, weights = route(SCORES, router, bias)
    expected, exact = ideal.route(SCORES, router, bias)
    assert np.array_equal(indices, expected)
    np.testing.assert_allclose(weights, exact, rtol=3e-6, atol=2.0**-39)


GROUPS = [(1, 1, "max"), (8, 3, "max"), (8, 3, "top2"), (32, 9, "top2")]
MASK = (np.random.default_rng(3).random(32) < 0.3).astype(F32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("tau", [None, 0.3, 0.9, 1.0])
def test_limited_routes_equal_their_float64_twin(kind, groups, tau):
    router = Router(4, kind, True, 1e-20, 2.5, *groups, tau)
    for bias in (None, BIAS):
        for mask in (None, MASK, np.eye(32, dtype=F32)[3], np.zeros(32, F32)):
            indices, weights = route(SCORES, router, bias, mask=mask)
            expected, exact = ideal.route(SCORES, router, bias, mask)
            assert np.array_equal(indices, expected)
            np.testing.assert_allclose(weights, exact, rtol=3e-6, atol=2.0**-39)


def test_masked_experts_weigh_nothing_and_do_not_move_the_others():
    """All sigmoid scores are independent: a route over fewer experts is the masked route."""
    router = Router(3, "sigmoid", True, 1e-20)
    there = np.flatnonzero(MASK)
    indices, weights = route(SCORES, router, mask=MASK)
    fewer, same = route(np.ascontiguousarray(SCORES[:, there]), router)
    assert np.array_equal(indices, there[fewer])
    assert same_bits(weights, same)
    spoilt = np.where(MASK != 0, SCORES, F32(2.0**40))
    assert same_bits(route(spoilt, router, mask=MASK)[1], weights)


def test_fewer_admitted_experts_than_chosen_ones_fill_up_with_weightless_ones():
    mask = np.zeros(32, F32)
    mask[[5, 9]] = 1
    for kind in KINDS:
        indices, weights = route(SCORES, Router(4, kind, True), mask=mask)
        known = np.isin(indices, [5, 9])
        assert (known.sum(axis=1) == 2).all()
        assert not weights[~known].view(np.uint32).any()
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("tau", [0.25, 0.6, 0.95])
def test_tau_keeps_the_shortest_prefix_that_holds_its_share(tau):
    whole = route(SCORES, Router(8))[1].astype(np.float64)
    kept = route(SCORES, Router(8, tau=tau))[1] != 0
    share = whole * kept
    assert (share.sum(axis=1) >= tau * whole.sum(axis=1) * (1 - 1e-6)).all()
    smallest = np.where(kept, whole, np.inf).min(axis=1)
    assert (np.where(kept, -np.inf, whole).max(axis=1) <= smallest).all()
    assert (share.sum(axis=1) - smallest < tau * whole.sum(axis=1)).all()
    assert len(set(kept.sum(axis=1))) > 1


def test_equal_groups_go_to_the_lower_index():
    router = Router(2, groups=4, kept_groups=1)
    assert route(np.zeros((1, 8), F32), router)[0].tolist() == [[0, 1]]
    two = Router(2, "sigmoid", groups=4, kept_groups=1, group_score="top2")
    scores = np.array([[3, -9, 1, 1, 2, 0, 1, 1]], F32)
    assert route(scores, two)[0].tolist() == [[2, 3]]
    assert route(scores, Router(2, "sigmoid", groups=4, kept_groups=1))[0].tolist() == [[0, 1]]


def deepseek_v2(scores, k):
    from transformers import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

    config = DeepseekV2Config(
        hidden_size=32, n_routed_experts=32, num_experts_per_tok=k, routed_scaling_factor=1.5,
        n_group=8, topk_group=3, topk_method="group_limited_greedy",
    )  # fmt: skip
    config.num_experts = 32
    limits = {"groups": 8, "kept_groups": 3}
    return DeepseekV2TopkRouter(config), (Router(k, routed_scaling=1.5, **limits), None), ()


def deepseek_v3(scores, k):
    import torch
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=32, n_routed_experts=32, num_experts_per_tok=k, routed_scaling_factor=2.5,
        n_group=8, topk_group=3, norm_topk_prob=True,
    )  # fmt: skip
    config.num_local_experts = 32
    router = DeepseekV3TopkRouter(config)
    router.e_score_correction_bias = torch.tensor(BIAS).double()
    limits = {"groups": 8, "kept_groups": 3, "group_score": "top2"}
    return router, (Router(k, "sigmoid", True, 1e-20, 2.5, **limits), BIAS), ()


def mixtral(scores, k):
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

    config = MixtralConfig(hidden_size=32, num_local_experts=32, num_experts_per_tok=k)
    return MixtralTopKRouter(config), (Router(k, "softmax", True), None), ()


def gpt_oss(scores, k):
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter

    config = GptOssConfig(hidden_size=32, num_local_experts=32, num_experts_per_tok=k)
    return GptOssTopKRouter(config), (Router(k, "softmax_topk"), None), ()


def lfm2(scores, k):
    import torch
    from transformers import Lfm2MoeConfig
    from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeTopKRouter

    config = Lfm2MoeConfig(hidden_size=32, num_experts=32, num_experts_per_tok=k)
    config.routed_scaling_factor, config.norm_topk_prob = 1.5, True
    options = Router(k, "sigmoid", True, 1e-6, 1.5), BIAS
    return Lfm2MoeTopKRouter(config), options, (torch.tensor(BIAS).double(),)


@pytest.mark.parametrize("model", [mixtral, gpt_oss, lfm2, deepseek_v2, deepseek_v3])
def test_route_equals_transformers(model):
    """Their routers see the scores through an identity weight, in float64."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    router, options, extra = model(SCORES, 4)
    router = router.double()
    with torch.no_grad():
        router.weight.copy_(torch.eye(32))
        if hasattr(router, "bias"):
            router.bias.zero_()
        _, weights, indices = router(torch.tensor(SCORES).double(), *extra)
    order = np.argsort(indices.numpy(), axis=-1)
    ours = route(SCORES, *options)
    assert np.array_equal(ours[0], np.take_along_axis(indices.numpy(), order, -1))
    expected = np.take_along_axis(weights.double().numpy(), order, -1)
    np.testing.assert_allclose(ours[1], expected, rtol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_go_to_the_lower_index(kind):
    scores = np.zeros((1, 40), F32)
    assert route(scores, Router(3, kind))[0].tolist() == [[0, 1, 2]]
    scores[0, [39, 7, 20]] = 1
    assert route(scores, Router(2, kind))[0].tolist() == [[7, 20]]
    assert route(scores, Router(4, kind))[0].tolist() == [[0, 7, 20, 39]]


def test_a_saturated_sigmoid_does_not_hide_the_order_of_scores():
    scores = np.array([[30, 31, 32, 33, 29]], F32)
    assert route(scores, Router(2, "sigmoid"))[0].tolist() == [[2, 3]]


def test_the_bias_moves_the_choice_but_not_the_weight():
    scores = np.array([[2, 1, 0, -1]], F32)
    bias = np.array([0, 0, 0, 5], F32)
    indices, weights = route(scores, Router(2, "sigmoid"), bias)
    assert indices.tolist() == [[0, 3]]
    np.testing.assert_allclose(weights[0], ideal.sigmoid([2, -1]), rtol=1e-6)


def test_renormalised_single_expert_weighs_exactly_one():
    _, weights = route(SCORES, Router(1, "softmax", True))
    assert same_bits(weights, np.ones((200, 1), F32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("renormalise", [False, True])
def test_t62_the_best_admitted_expert_is_chosen_and_weighs_one(kind, renormalise):
    scores = np.array([[-1, 3, -0.5, 2], [-7, 9, -7, 9], [0, 0, 0, 0]], F32)
    mask, only = np.array([1, 0, 1, 0], F32), np.array([0, 0, 0, 1], F32)
    router = Router(1, kind, renormalise)
    indices, weights = route(scores, router, mask=mask)
    assert indices[:, 0].tolist() == [2, 0, 0]  # the lowest index where they are equal
    whole = renormalise or kind == "softmax_topk"
    expected = np.ones((3, 1)) if whole else {
        "softmax": ideal.softmax(scores.astype(np.float64)), "sigmoid": ideal.sigmoid(scores),
        "sqrt_softplus": np.sqrt(np.log1p(np.exp(scores.astype(np.float64)))),
    }[kind][[0, 1, 2], [2, 0, 0]][:, None]  # fmt: skip
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    assert not whole or same_bits(weights, np.ones((3, 1), F32))
    assert (route(scores, router, mask=only)[0] == 3).all()
    everybody, plain = route(scores, router, mask=np.ones(4, F32)), route(scores, router)
    assert np.array_equal(everybody[0], plain[0]) and same_bits(everybody[1], plain[1])
    nobody = route(scores, router, mask=np.zeros(4, F32))
    assert (nobody[0] == plain[0]).all() and not nobody[1].view(np.uint32).any()


def test_weights_that_vanish_are_zero_not_nan():
    scores = np.full((1, 4), F32(-70))
    for floor in (0.0, 1e-20):
        _, weights = route(scores, Router(2, "sigmoid", True, floor))
        assert not weights.view(np.uint32).any()


def test_the_denominator_floor_counts():
    scores = np.full((1, 4), F32(-20))
    heavy = route(scores, Router(2, "sigmoid", True, 1e-6))[1]
    light = route(scores, Router(2, "sigmoid", True, 1e-20))[1]
    assert (light / heavy > 100).all()


def test_the_denominator_is_summed_in_ascending_index_order():
    """Rows whose rounded sum depends on the order: the definition's order is the one used."""
    _, weights = route(SCORES, Router(5, "sigmoid"))
    _, normal = route(SCORES, Router(5, "sigmoid", True))
    ascending, descending = np.zeros(200, F32), np.zeros(200, F32)
    for column in range(5):
        ascending = ascending + weights[:, column]
        descending = descending + weights[:, 4 - column]
    assert (ascending != descending).any()
    assert same_bits(normal, weights / ascending[:, None])


def test_experts_are_added_in_order():
    weights = canonical(RNG, (50, 4), -5, 5)
    outputs = canonical(RNG, (50, 4, 70), -5, 5)
    y = combine_experts(weights, outputs)
    for row, column in ((0, 0), (49, 69), (20, 33)):
        total = F32(0)
        for k in range(4):
            total = total + weights[row, k] * outputs[row, k, column]
        assert same_bits(total, y[row, column]) or abs(total) < 2.0**-40
    np.testing.assert_allclose(y, ideal.combine_experts(weights, outputs), rtol=1e-4, atol=1e-3)
    reverse = combine_experts(weights[:, ::-1], outputs[:, ::-1])
    assert not np.array_equal(reverse, y)


def test_faults_flag_the_row():
    outputs = np.ones((3, 2, 4), F32)
    outputs[2, 1, 1] = LIMIT / 2
    faults = np.zeros(3, bool)
    combine_experts(np.full((3, 2), F32(2)), outputs, faults)
    assert faults.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 33}, "top_k = 33 of 32 experts"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 1, "kind": "hash"}, "kind is 'hash'; it takes one of softmax, sigmoid"),
        ({"top_k": 1, "denominator_floor": -1.0}, "denominator_floor"),
        ({"top_k": 1, "routed_scaling": float("nan")}, "routed_scaling"),
        ({"top_k": 1, "groups": 2, "kept_groups": 3}, "kept_groups is 3, groups is 2"),
        ({"top_k": 1, "groups": 5}, "32 experts in 5 groups"),
        ({"top_k": 9, "groups": 4}, "top_k = 9 of 8 experts"),
        ({"top_k": 1, "group_score": "mean"}, "group_score is 'mean'; it takes one of max, top2"),
        ({"top_k": 1, "tau": 0.0}, "tau is 0.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UnsupportedError, match=message):
        route(SCORES, Router(**options))


def test_flush_to_zero_changes_no_bit():
    scores = canonical(np.random.default_rng(1), (500, 32), -40, 7)
    outputs = canonical(np.random.default_rng(2), (500, 4, 20))

    def compute():
        results = [softmax(scores)]
        for kind in KINDS:
            for bias in (None, BIAS):
                router = Router(4, kind, True, 1e-20, 2.5, 4, 2, "top2", 0.9)
                indices, weights = route(scores, router, bias, mask=MASK)
                faults = np.zeros(500, bool)
                results += [indices, weights, combine_experts(weights, outputs, faults), faults]
        return results

    plain = compute()
    with flush_to_zero():
        flushed = compute()
    assert all(np.array_equal(p, f) for p, f in zip(plain, flushed, strict=True))
