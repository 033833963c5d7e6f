"""Slopes of ALiBi against transformers' own, for powers of two of heads and other numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from cortiq.models.alibi import alibi_slopes


@pytest.mark.parametrize("heads", [1, 2, 6, 16, 40, 112])
def test_slopes_are_those_of_both_implementations(heads):
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1].numpy()
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0].numpy()
    assert np.allclose(alibi_slopes(heads), bloom, rtol=1e-6, atol=0)
    assert np.allclose(alibi_slopes(heads), mpt, rtol=1e-6, atol=0)


def test_the_steepest_slope_and_all_others_follow_from_the_bound():
    found = -build_mpt_alibi_tensor(12, 2, alibi_bias_max=16)[:, 0, 0].numpy()
    assert np.allclose(alibi_slopes(12, 16), found, rtol=1e-6, atol=0)
    assert alibi_slopes(4, 16) == (2.0**-4, 2.0**-8, 2.0**-12, 2.0**-16)
