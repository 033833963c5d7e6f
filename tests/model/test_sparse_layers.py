"""MiniMax M3's sparse layers: attention to the blocks of keys that an indexer chooses."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from checkpoints import write
from families_mixed import MINIMAX
from family_harness import changed, distance, logits_of

from cortiq.backend import Batch, CompileOptions, Digest, Row
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir import KVRows
from cortiq.models import load_program
from cortiq_reference.backend import ReferenceBackend

SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2,
          "index_head_dim": 20, "index_block_size": 8, "index_topk_blocks": 3}  # fmt: skip


@pytest.mark.parametrize("local", [1, 2])
def test_sparse_layers_equal_transformers(tmp_path, local):
    """Two blocks of three are kept, of which the last ones always."""
    case = MINIMAX.case("wide")
    options = {**case.options, **SPARSE, "index_topk_blocks": 2, "index_local_blocks": local}
    options |= {"num_key_value_heads": 2}
    model = write(type(case)("sparser", case.config, options, positions=24), tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert distance(logits_of(checkpoint, model.tokens), model.logits) < 1e-5
    dense = changed(checkpoint, {"layer_types": ["full_attention"] * 2})
    assert distance(logits_of(dense, model.tokens), model.logits) > 1e-3


def test_a_sparse_layer_is_an_ordinary_one_while_every_block_is_kept(tmp_path):
    """No indexer up to 24 tokens; with one, the same."""
    case = MINIMAX.case("wide")
    options = {**case.options, **SPARSE, "num_key_value_heads": 2}
    model = write(type(case)("sparse", case.config, options, positions=24), tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    for context, chosen in ((24, 0), (25, 1), (None, 1)):
        program = load_program(checkpoint, context=context).program
        assert sum(slot == KVRows(1, 20, 0) for slot in program.slots.values()) == chosen
        assert distance(logits_of(checkpoint, model.tokens, context), model.logits) < 1e-5


def test_chunks_rewinds_and_forks_of_sparse_layers_change_no_bit(tmp_path):
    case = MINIMAX.case("wide")
    options = {**case.options, **SPARSE, "index_topk_blocks": 2, "num_key_value_heads": 2}
    model = write(type(case)("sparsest", case.config, options, positions=24), tmp_path)
    loaded = load_program(open_checkpoint(tmp_path))
    executable = ReferenceBackend().compile(loaded.program, loaded.weights, CompileOptions())
    ids, want = [int(t) for t in model.tokens], Digest("logits")

    def fed(state, tokens):
        start = state.length()
        rows = [Row(state, start + i, t, (want,)) for i, t in enumerate(tokens)]
        return [row[want] for row in executable.forward(Batch(rows)).result().rows]

    whole = fed(executable.open(64), ids)
    state = executable.open(64)
    assert [d for start in range(0, 18, 5) for d in fed(state, ids[start : start + 5])][
        :18
    ] == whole[:18]
    state.rewind(13)
    assert fed(state.fork(11), ids[11:]) == whole[11:]
    fed(state, ids[:3])
    state.rewind(13)
    assert fed(state, ids[13:]) == whole[13:]
