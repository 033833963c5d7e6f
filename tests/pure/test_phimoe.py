"""Phi 3.5 MoE: which list of longrope and which amplitude a context takes."""

from __future__ import annotations

import pytest

from cortiq.errors import FormatError
from cortiq.models.config import config_from_json
from cortiq.models.phimoe import KEYS, Config, rope

LONGROPE = {
    "type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1.0, 1.25],
    "long_factor": [1.0, 3.0], "short_mscale": 1.25, "long_mscale": 1.5,
}  # fmt: skip
VALUES = {
    "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 256,
    "model_type": "phimoe", "num_attention_heads": 2, "num_hidden_layers": 1,
    "num_key_value_heads": 1, "rope_theta": 1e4, "vocab_size": 16,
}  # fmt: skip


def table(context, **changes):
    """The rotary table of a configuration whose longrope is changed (None leaves a key out)."""
    scaling = {k: v for k, v in {**LONGROPE, **changes}.items() if v is not None}
    values = {**VALUES, "rope_scaling": scaling}
    return rope(config_from_json(Config, KEYS, values, where="config.json"), context)


@pytest.mark.parametrize(("context", "amplitude", "divisor"), [(64, 1.25, 1.25), (65, 1.5, 3.0)])
def test_a_context_takes_the_list_and_the_amplitude_of_its_length(context, amplitude, divisor):
    found = table(context)
    assert float(found.amplitude) == amplitude
    assert float(found.frequencies[1]) == pytest.approx(1e4**-0.5 / divisor)


@pytest.mark.parametrize("name", ["short_mscale", "long_mscale"])
@pytest.mark.parametrize("value", [None, "1.25", -1.0])
def test_an_amplitude_that_is_no_number_is_named(name, value):
    with pytest.raises(FormatError, match=name):
        table(64, **{name: value})
