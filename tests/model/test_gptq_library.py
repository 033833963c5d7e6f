"""`cortiq.convert.gptq`: moments are Σ x·xᵀ of the rows that `cortiq.explain` reads, and codes by
them lose less than the nearest.
"""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.convert.gptq import codes_of, second_moments
from cortiq.errors import RequestError
from cortiq.explain import open_observed
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.dequantise import embedding_rows

MODEL = "synthetic:mini-qwen3?seed=3"
IDS = [int(i) for i in np.random.default_rng(1).integers(0, 256, 300)]
Q = "model.layers.1.self_attn.q_proj.weight"


def test_moments_are_products_of_the_rows():
    found = {name: m for names, m in second_moments(MODEL, IDS) for name in names}
    with open_observed(MODEL, backend="reference") as model:
        norm = "layers.1.attention_norm"
        rows = np.concatenate([v[norm] for v in model.rows(IDS, [norm])]).astype(np.float64)
    assert np.allclose(found[Q], rows.T @ rows, rtol=1e-4, atol=1e-3)
    assert found[Q] is found[Q.replace("q_proj", "v_proj")]
    assert "lm_head.weight" not in found and len(found) == 14
    ((names, alone),) = second_moments(MODEL, IDS, [Q])
    assert names == [Q] and np.array_equal(alone, found[Q])


def test_codes_by_moments_lose_less_than_the_nearest():
    ((_, moments),) = second_moments(MODEL, IDS, [Q])
    weight = load_program(open_synthetic(MODEL)).weights[Q]
    values = embedding_rows(weight, np.arange(weight.shape[0]), name=Q)
    low = np.broadcast_to(values.min(axis=1, keepdims=True), values.shape)
    scale = (values.max(axis=1, keepdims=True) - low) / np.float32(15)
    codes = codes_of(values, scale, low, 15, moments)
    nearest = np.clip(np.rint((values - low) / scale), 0, 15)
    assert codes.min() >= 0 and codes.max() <= 15 and (codes == np.rint(codes)).all()
    lost = [
        np.einsum("ij,jk,ik->", e, moments.astype(np.float64), e)
        for e in (values - (codes * scale + low), values - (nearest * scale + low))
    ]
    assert lost[0] < 0.8 * lost[1]


def test_what_has_no_moments_is_said():
    with pytest.raises(RequestError, match="no matrix 'none'"):
        next(second_moments(MODEL, IDS, ["none"]))
    with pytest.raises(RequestError, match="no tokens"):
        next(second_moments(MODEL, []))
