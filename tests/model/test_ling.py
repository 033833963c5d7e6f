"""Ling 2.5 against an evaluation of its formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

from family_harness import distance, logits_of
from ling_oracle import CONFIG, Model, tensors, write

from cortiq.errors import CortiqError, FormatError
from cortiq.formats.checkpoint import open_checkpoint

TOKENS = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], 24).tolist()
GEOMETRIES = {
    "published": {},
    "odd": {
        "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8, "qk_rope_head_dim": 4,
        "layer_group_size": 3, "group_norm_size": 4, "use_qk_norm": False,
        "num_shared_experts": 2, "moe_shared_expert_intermediate_size": 48,
    },
}  # fmt: skip
"""Options over those of `CONFIG`; in both a layer follows the last whole group."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MOVES = [
    {"rms_norm_eps": 0.03}, {"rope_theta": 500.0}, {"routed_scaling_factor": 1.8},
    {"num_experts_per_tok": 2}, {"topk_group": 3}, {"n_group": 2}, {"group_norm_size": 4},
    {"rope_scaling": YARN}, {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
]  # fmt: skip

WITHOUT = {"group_norm_size": None, "partial_rotary_factor": 1.0}
"""Of a file of Ling 3, whose linear layers have other tensors."""


def read(folder, config, held):
    write(folder, config, held)
    return logits_of(open_checkpoint(folder), TOKENS)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_float64_is_the_formulas(geometry, tmp_path):
    config = CONFIG | GEOMETRIES[geometry]
    held = tensors(config)
    found = read(tmp_path, config, held)
    assert distance(found, Model(config, held).logits(TOKENS)) < 1e-5


@pytest.mark.parametrize("changes", MOVES, ids=str)
def test_every_option_moves_the_logits_as_the_formulas_say(changes, tmp_path):
    held = tensors(CONFIG)
    wanted = Model(CONFIG | changes, held).logits(TOKENS)
    assert distance(Model(CONFIG, held).logits(TOKENS), wanted) > 1e-4
    assert distance(read(tmp_path, CONFIG | changes, held), wanted) < 1e-5


def test_keys_that_a_file_leaves_out_have_the_values_of_its_own_class(tmp_path):
    said = {"rope_theta": 600000.0, "routed_scaling_factor": 1.0, "layer_group_size": 5}
    config = CONFIG | said | {"moe_shared_expert_intermediate_size": ...}
    held = tensors(config)
    kept = {k: v for k, v in config.items() if v is not ... and k not in said}
    del kept["partial_rotary_factor"], kept["first_k_dense_replace"], kept["rope_interleave"]
    found = read(tmp_path, kept, held)
    assert distance(found, Model(config, held).logits(TOKENS)) < 1e-5


def test_a_slope_and_a_draft_layer_of_the_file_are_not_read(tmp_path):
    held = tensors(CONFIG)
    more = {"model.layers.0.attention.slope": np.ones(4, np.float32)}
    more |= {f"model.layers.5.{end}.weight": np.ones((4, 8), np.float32)
             for end in ("eh_proj", "attention.dense")}  # fmt: skip
    found = read(tmp_path, CONFIG | {"num_nextn_predict_layers": 1}, held | more)
    assert distance(found, Model(CONFIG, held).logits(TOKENS)) < 1e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"linear_silu": True}, "linear_silu"),
        ({"use_bias": True}, "use_bias"),
        ({"rope_interleave": False}, "rope_interleave"),
        ({"score_function": "softmax"}, "score_function"),
        ({"partial_rotary_factor": 1.0}, "qk_rope_head_dim is 6; it must be 12"),
        ({"rotary_dim": 8}, "rotary_dim is 8; it must be 6"),
        ({"moe_shared_expert_intermediate_size": 20}, "must be 24"),
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, "6 heads in 5 layers"),
        ({"group_norm_size": 5}, "groups of a norm are equal"),
        ({**WITHOUT, "use_qk_norm": False}, "use_qk_norm"),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused_by_name(changes, words, tmp_path):
    with pytest.raises(CortiqError, match=words):
        read(tmp_path, CONFIG | changes, tensors(CONFIG))


@pytest.mark.parametrize(
    "changes",
    [{"use_qk_norm": False}, {"layer_group_size": 3}, {"head_dim": 16, "qk_rope_head_dim": 8},
     WITHOUT],
    ids=str,
)  # fmt: skip
def test_tensors_that_contradict_the_configuration_are_refused(changes, tmp_path):
    with pytest.raises(FormatError, match=r"does not hold the tensors"):
        read(tmp_path, CONFIG | changes, tensors(CONFIG))
