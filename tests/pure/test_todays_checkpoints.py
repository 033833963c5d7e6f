"""The checkpoints that people download: graphs of published configurations, and their sizes."""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import model_table

from cortiq.errors import UnsupportedError
from cortiq.formats.quantisation import METHODS
from cortiq.formats.quantisation_config import read_quantisation
from cortiq.models.config import config_from_json
from cortiq.models.registry import families

ROWS = model_table.checkpoints()
MORE = json.loads((Path(__file__).parents[1] / "data" / "published_configs.json").read_text())
"""Further repositories: their sizes, their configurations, and the public page with the facts."""
USUAL = {
    "_name_or_path": "x", "architectures": ["X"], "attention_dropout": 0.0, "bos_token_id": 1,
    "dtype": "bfloat16", "eos_token_id": [2, 3], "initializer_range": 0.02, "pad_token_id": None,
    "transformers_version": "5.0.0", "use_cache": True,
}  # fmt: skip
"""Keys that change no graph, which every published configuration has some of."""


def parameters(row, **changes):
    """Elements of all weights of a checkpoint's graph."""
    return elements(row, {**model_table.config_of(row), **changes})


def elements(row, published):
    """Elements of all weights of a configuration's graph; no weight is made for that."""
    family, values = families()[row["architecture"]], {**USUAL, **published}
    config = config_from_json(family.Config, family.KEYS, values, where="config.json")
    program = family.build(config, config.max_position_embeddings)
    return sum(prod(spec.shape) for spec in program.weights.values())


def test_there_are_25_in_order_and_at_least_20_open():
    assert len(ROWS) == len({row["name"] for row in ROWS}) == 25
    counts = [row["downloads"] for row in ROWS]
    assert counts == sorted(counts, reverse=True)
    assert sum(model_table.opens(row) == "yes" for row in ROWS) >= 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_checkpoint_has_its_published_size(row, tmp_path):
    if model_table.opens(row) != "yes":
        pytest.skip(model_table.opens(row))
    count = parameters(row)
    if "billions" in row:
        assert count == pytest.approx(row["billions"] * 1e9, rel=0.01)
    if "GGUF" in row["format"]:
        assert row["architecture"] in families()[row["architecture"]].GGUF
    said = {"quantization_config": row.get("quantization_config")}
    method = read_quantisation(said, tmp_path).method
    assert (method in METHODS) == ("quantization_config" in row)


@pytest.mark.parametrize("row", MORE, ids=lambda row: row["name"])
def test_a_published_configuration_has_its_published_size(row):
    assert elements(row, row["config"]) == pytest.approx(row["billions"] * 1e9, rel=0.01)


def test_there_are_sizes_of_sixty_repositories():
    listed = [row for row in ROWS if "billions" in row and model_table.opens(row) == "yes"]
    names = {row["name"] for row in [*listed, *MORE]}
    assert len(names) == len(listed) + len(MORE) >= 60 and all(row["source"] for row in MORE)


def test_a_layer_too_few_would_be_seen():
    for row in ROWS:
        listed = "repeat" in row or "linear_attn_config" in row.get("config", {})
        if "billions" in row and model_table.opens(row) == "yes" and not listed:
            config = model_table.config_of(row)
            key = "n_layer" if "n_layer" in config else "num_hidden_layers"
            count = parameters(row, **{key: config[key] - 1})
            assert count != pytest.approx(row["billions"] * 1e9, rel=0.01), row["name"]


def test_a_key_that_is_not_known_would_be_refused():
    with pytest.raises(UnsupportedError, match="doubled_layers"):
        parameters(ROWS[0], doubled_layers=2)
