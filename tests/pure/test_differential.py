"""Differential attention by its definition and among ranks; the factor of its second softmax."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from one_layer import EPS, normed, plain, run, weights_for
from test_layers import TABLE, rotated
from test_rank_recurrences import assert_layer, bound

from cortiq.errors import FormatError, GraphError
from cortiq.ir.layers import DifferentialAttention
from cortiq.models.diffllama import initial
from cortiq.numerics.contract import F32
from cortiq.numerics.scaling import differential_gain

ROWS = 20
BASE = DifferentialAttention(24, heads=8, kv_heads=4, head_dim=8, eps=EPS, factor=0.7)
OPTIONS = {
    "halves": BASE,
    "neighbours": replace(BASE, pairs="neighbours"),
    "rope": replace(BASE, rope=TABLE, kv_heads=8),
    "rope of neighbours": replace(BASE, rope=TABLE, pairs="neighbours", pairing="interleaved"),
    "window": replace(BASE, window=5, kv_heads=2),
    "biases and a weight": replace(BASE, biased=True, output_biased=True, weighted=True),
}


def formula(op, w, x):
    """The difference of two softmaxes, pair of heads by pair of heads."""

    def pairs(role, count):
        y = (x @ w[role].T + w.get(f"{role}_bias", 0)).reshape(len(x), count, op.head_dim)
        y = rotated(y, op.rope, op.pairing) if op.rope and role != "v" else y
        half = count // 2
        return (y[:, :half], y[:, half:]) if op.pairs == "halves" else (y[:, ::2], y[:, 1::2])

    q, k, v = (pairs(role, op.kv_heads if role != "q" else op.heads) for role in "qkv")
    out = np.zeros((len(x), op.heads // 2, 2 * op.head_dim))
    for h in range(op.heads // 2):
        group = h * op.kv_heads // op.heads
        for t in range(len(x)):
            seen = slice(max(0, t - op.window + 1) if op.window else 0, t + 1)
            values = np.concatenate([part[seen, group] for part in v], axis=1)
            for n, factor in enumerate((1.0, w["second"][0])):
                p = np.exp(k[n][seen, group] @ q[n][t, h] * op.head_dim**-0.5)
                out[t, h] += factor * (p / p.sum() @ values)
    out = normed(out, w.get("norm", 1.0)) * op.factor
    return out.reshape(len(x), -1) @ w["o"].T + w.get("o_bias", 0)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_layer_is_its_formula(name):
    op = OPTIONS[name]
    weights, x = weights_for(op, seed=1), np.random.default_rng(2).standard_normal((ROWS, 24))
    np.testing.assert_allclose(
        run(op, weights, {"x": x}), formula(op, plain(op, weights), x), atol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [({"kv_heads": 1}, "kv_heads is even"), ({"kv_heads": 6}, "kv_heads divides heads"),
     ({"rope": replace(TABLE, dim=16)}, "a head holds the rotary dimensions")],
)  # fmt: skip
def test_heads_that_make_no_pairs_are_refused(options, words):
    with pytest.raises(GraphError, match=words):
        run(replace(BASE, **options), {}, {"x": np.zeros((1, 24))})


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_ranks_compute_its_bits(pairs):
    op = DifferentialAttention(48, 8, 4, 8, eps=EPS, factor=0.7, pairs=pairs, rope=TABLE)
    assert_layer(*bound(op), (2, 3))


def test_the_factor_of_the_second_softmax():
    rng = np.random.default_rng(3)
    for width in (1, 64, 300):
        vectors = rng.standard_normal((4, width)).astype(F32) / F32(width**0.5)
        q1, k1, q2, k2 = vectors.astype(np.float64)
        expected = np.exp(q2 @ k2) - np.exp(q1 @ k1) - initial(5)
        found = differential_gain(vectors, initial(5))
        assert found.dtype == F32 and found.shape == (1,)
        assert abs(found[0] - expected) < 1e-6 * (np.exp(q1 @ k1) + np.exp(q2 @ k2) + 1)
    assert initial(0) == pytest.approx(0.2) and initial(9) == pytest.approx(
        0.8 - 0.6 * np.exp(-2.7)
    )
    with pytest.raises(FormatError, match=r"layers\.2\.lambda: .* exponential is 2\^50 or more"):
        differential_gain(np.full((4, 8), 3, F32), 0.2, "layers.2.lambda")
