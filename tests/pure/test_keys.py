"""Sparse attention: the choice of keys."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cortiq.ir import ops
from cortiq.ir.op import Type, TypeMismatchError, violations_of
from cortiq.numerics.contract import F32
from cortiq.numerics.ideal_mixers import dequantise_ideal
from cortiq.numerics.key_blocks import choose_keys, key_scores
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.level0.blocks import CHOSEN, block_attention
from cortiq_conformance.level0.keys import CHOICES
from cortiq_conformance.oracle import OracleSequence
from cortiq_reference.ideal import evaluate

ROWS, HEADS, DIM, TOP = 90, 11, 8, 12
POSITIONS = np.arange(ROWS)


def coded(*shape, seed):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return quantise_rows(values)


Q, KEYS = coded(ROWS, HEADS, DIM, seed=0), coded(ROWS, 1, DIM, seed=1)
WEIGHTS = np.random.default_rng(2).standard_normal((ROWS, HEADS)).astype(F32)


def test_the_choice_is_that_of_transformers():
    """Their indexer on the same queries and keys; its norm and rotation left out."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

    class Projection:
        weight = torch.zeros(1).double()

        def __call__(self, x):
            return torch.tensor(WEIGHTS)[None]

    q, k = (torch.tensor(dequantise_ideal(x)) for x in (Q, KEYS))
    indexer = SimpleNamespace(
        n_heads=HEADS, head_dim=DIM, qk_rope_head_dim=4, index_topk=TOP, layer_idx=0,
        softmax_scale=DIM**-0.5, wq_b=lambda x: q.reshape(1, ROWS, -1),
        wk=lambda x: k.reshape(1, ROWS, -1), k_norm=torch.nn.Identity(), weights_proj=Projection(),
    )  # fmt: skip
    still = torch.ones(1, ROWS, 4).double(), torch.zeros(1, ROWS, 4).double()
    seen = torch.tril(torch.ones(1, ROWS, ROWS, dtype=torch.bool))
    found = DeepseekV32Indexer.forward(
        indexer, torch.zeros(1, ROWS, 1), torch.zeros(1, ROWS, 1), still, seen, None
    )
    ours = choose_keys(Q, KEYS, WEIGHTS, POSITIONS, TOP)
    for row in range(ROWS):
        theirs = {i for i in found[0, row].tolist() if i <= row}
        assert {i for i in ours[row, 0].tolist() if i <= row} == theirs


def test_lists_ascend_and_go_on_with_keys_that_are_not_there():
    chosen = choose_keys(Q, KEYS, WEIGHTS, POSITIONS, TOP)
    assert (np.diff(chosen, axis=-1) > 0).all()
    assert chosen[5, 0].tolist() == list(range(TOP))
    assert (chosen[80, 0] <= 80).all() and (chosen[80, 0] != np.arange(TOP)).any()


def test_equal_scores_go_to_the_lower_key():
    flat = quantise_rows(np.ones((40, 1, DIM), np.float32))
    weight = np.ones((1, 1), F32)
    one = Quantised(flat.q[:1], flat.e[:1])
    assert choose_keys(one, flat, weight, np.array([39]), 3)[0, 0].tolist() == [0, 1, 2]
    assert choose_keys(one, flat, -weight, np.array([39]), 3)[0, 0].tolist() == [0, 1, 2]


def test_a_score_is_the_sum_of_what_is_positive():
    """Against float64; no score is -0."""
    row, keys = Quantised(Q.q[7], Q.e[7]), Quantised(KEYS.q[:, 0], KEYS.e[:, 0])
    scores = key_scores(row, keys, WEIGHTS[7])
    products = dequantise_ideal(row) @ dequantise_ideal(keys).T
    exact = WEIGHTS[7].astype(np.float64) @ np.maximum(products, 0)
    np.testing.assert_allclose(scores, exact, atol=1e-5 * np.abs(exact).max())
    against = key_scores(row, Quantised(-np.abs(keys.q), keys.e), np.abs(WEIGHTS[7]))
    assert not np.signbit(against).any()


@pytest.mark.parametrize("name", CHOICES)
def test_the_float64_twin_chooses_and_attends_alike(name):
    probe = block_attention(CHOICES[name])
    feed = probe.feed(CaseData(name), ROWS, 1.5)
    exact = evaluate(probe.program, {}, feed.tokens, ["y", CHOSEN], inputs=feed.inputs)
    ours = OracleSequence(probe.program, probe.weights).feed(feed.tokens, feed.inputs).values
    same = (ours[CHOSEN] == exact[CHOSEN]).mean()
    assert same > 0.98
    if same == 1:
        np.testing.assert_allclose(ours["y"], exact["y"], atol=1e-3 * np.abs(exact["y"]).max())


def test_geometries_that_do_not_fit_are_refused():
    op = ops.ChooseKeys(4, 8, 3)
    with pytest.raises(TypeMismatchError):
        op.infer(Type((4, 8), "q16"), Type((), "i32"), Type((3,)))
    (found,) = violations_of(ops.ChooseKeys(257, 8, 3))
    assert found.options == "ChooseKeys.heads is 257"
