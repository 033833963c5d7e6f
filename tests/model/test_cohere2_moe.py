"""Kinds of layers that Command A+'s configurations leave to a rule."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import transformers

from cortiq.models.cohere2_moe import KEYS, Config
from cortiq.models.config import config_from_json
from cortiq.models.layer_kinds import GLOBAL, LOCAL


@pytest.mark.parametrize("dense", [0, 1, 3])
@pytest.mark.parametrize("pattern", [1, 2])
def test_kinds_of_layers_without_lists_are_those_of_transformers(dense, pattern):
    """Windows of the layers after the leading ones are counted anew."""
    rules = {"first_k_dense_replace": dense, "prefix_dense_sliding_window_pattern": pattern}
    theirs = transformers.Cohere2MoeConfig(num_hidden_layers=9, **rules)
    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 64,
             "num_hidden_layers": 9, "num_attention_heads": 4}  # fmt: skip
    ours = config_from_json(Config, KEYS, sizes | rules, where="config.json")
    assert [LOCAL if window else GLOBAL for window in ours.windows()] == theirs.layer_types
    assert [("dense", "sparse")[one] for one in ours.sparse()] == theirs.mlp_layer_types
