"""Zamba 2's sizes that follow from others, and the blocks that its layers share."""

from __future__ import annotations

import pytest

from cortiq.errors import FormatError
from cortiq.models import zamba2
from cortiq.models.config import config_from_json
from cortiq.models.synthetic_configs import CONFIGS

SMALL = {k: v for k, v in CONFIGS["mini-zamba2"].items() if k != "model_type"}
FOLLOW = {
    "attention_hidden_size": 128, "head_dim": 32, "kv_channels": 16, "mamba_headdim": 16,
    "num_query_groups": 4, "hybrid_layer_ids": [1, 2],
}  # fmt: skip


def program(**changes):
    config = config_from_json(zamba2.Config, zamba2.KEYS, SMALL | changes, where="here")
    return zamba2.build(config, 64)


@pytest.mark.parametrize("name", FOLLOW)
def test_sizes_that_follow_from_others_are_checked(name):
    wrong = [0] if name == "hybrid_layer_ids" else FOLLOW[name] + 1
    assert program(**FOLLOW) == program()
    with pytest.raises(FormatError, match=name):
        program(**FOLLOW | {name: wrong})


@pytest.mark.parametrize(("blocks", "owners"), [(1, {"1"}), (2, {"1", "2"}), (3, {"1", "2"})])
def test_uses_of_a_block_share_its_tensors_and_have_slots_and_adapters_of_their_own(blocks, owners):
    found = program(num_mem_blocks=blocks)
    assert {n.split(".")[2] for n in found.weights if n.endswith("o_proj.weight")} == owners
    uses = [n for n in found.weights if ".linear_q_adapter_list." in n and n.endswith(".0.weight")]
    assert sorted(name.split(".")[-3] for name in uses) == ["0", "1"]
    assert {"layers.1.kv", "layers.2.kv"} <= set(found.slots)
