"""MiniMax M3's sparse layers: ordinary ones while every block of keys is kept, refused beyond."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from checkpoints import write
from families_mixed import MINIMAX
from family_harness import changed, distance, logits_of

from cortiq.errors import UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program

SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2,
          "index_head_dim": 20, "index_block_size": 8, "index_topk_blocks": 3}  # fmt: skip


def test_a_sparse_layer_is_an_ordinary_one_up_to_the_declared_context(tmp_path):
    case = MINIMAX.case("wide")
    options = {**case.options, **SPARSE, "num_key_value_heads": 2}
    model = write(type(case)("sparse", case.config, options, positions=24), tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert any(".indexer." in name for name in checkpoint.tensor_names)
    assert distance(logits_of(checkpoint, model.tokens, 24), model.logits) < 1e-5
    for context in (25, None):
        with pytest.raises(UnsupportedError, match="more than 24") as error:
            load_program(checkpoint, context=context)
        assert "at most 24 tokens" in str(error.value)
    dense = changed(checkpoint, {"layer_types": ["full_attention"] * 2})
    assert load_program(dense).program.context == 256


def test_the_choice_of_blocks_would_show(tmp_path):
    """What is refused is not the same: with two blocks of three kept, transformers differs."""
    case = MINIMAX.case("wide")
    options = {**case.options, **SPARSE, "num_key_value_heads": 2, "index_topk_blocks": 2}
    model = write(type(case)("sparser", case.config, options, positions=24), tmp_path)
    dense = changed(open_checkpoint(tmp_path), {"layer_types": ["full_attention"] * 2})
    assert distance(logits_of(dense, model.tokens), model.logits) > 1e-3
