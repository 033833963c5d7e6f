"""Compare defaults of a config.json of CWM with those of transformers."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import transformers

from cortiq.models import cwm
from cortiq.models.config import config_from_json

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 6,
    "num_attention_heads": 8,
}  # fmt: skip


def test_windows_and_rotary_parameters_left_out_are_those_of_transformers():
    given = cwm.values({"model_type": "cwm", **SIZES})
    config = config_from_json(cwm.Config, cwm.KEYS, given, where="config.json")
    theirs = transformers.CwmConfig(**SIZES)
    assert dict(config.rope_parameters) == theirs.rope_parameters
    kinds = {"full_attention": None, "sliding_attention": theirs.sliding_window}
    assert config.windows() == tuple(kinds[kind] for kind in theirs.layer_types)
    assert (config.head_dim, config.kv_heads) == (theirs.head_dim, theirs.num_key_value_heads)
    assert config.rms_norm_eps == theirs.rms_norm_eps
