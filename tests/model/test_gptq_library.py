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
    for strange in ("q", None, 5, [[1]]):
        with pytest.raises(RequestError):
            next(second_moments(MODEL, IDS, ["x", 1] if strange is None else strange))
    for text in (None, 5, b"ab", [1.5]):
        with pytest.raises(RequestError):
            next(second_moments(MODEL, text))
    with pytest.raises(RequestError, match="is no folder"):
        next(second_moments(MODEL, IDS, scratch="/no/such/folder"))


def test_codes_are_made_of_finite_matrices_and_moments_only():
    random = np.random.default_rng(2)
    values, rows = (random.standard_normal(s).astype(np.float32) for s in ((4, 8), (20, 8)))
    good = {"values": values, "scale": np.full((4, 8), 0.1, np.float32), "low": values * 0 - 1,
            "largest": 15, "moments": rows.T @ rows}  # fmt: skip
    codes = codes_of(**good)
    doubles = good | {"values": values.astype(np.float64)}
    assert np.array_equal(codes_of(**doubles), codes) and codes_of(**doubles).dtype == np.float32
    for name in ("values", "scale", "low", "moments"):
        whole = good[name]
        holed = np.where(np.arange(8) == 3, np.float32(np.nan), whole)
        for bad in (whole[:2], whole[0], whole.tolist(), whole.astype(str), holed, None):
            with pytest.raises(RequestError):
                codes_of(**good | {name: bad})
    for largest in (0, -1, 1.5, "a", True, 10**9):
        with pytest.raises(RequestError, match="largest"):
            codes_of(**good | {"largest": largest})
    with pytest.raises(RequestError, match="no second moments"):
        indefinite = 50 * np.eye(8, dtype=np.float32) - 9 - good["moments"]
        codes_of(**good | {"moments": indefinite})
