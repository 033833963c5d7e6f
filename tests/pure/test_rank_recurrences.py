"""Recurrences on several ranks: heads, groups of heads and channels are divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from one_layer import program_of, weights_for
from rank_threads import CHUNKS, Streams, by_ranks

from cortiq.backend import Batch, CompileOptions, Digest, ExportedState, Row, Status
from cortiq.ir import KVRows, Program, Recurrent
from cortiq.ir.layers import GatedDeltaNet, LightningAttention, Mamba2
from cortiq.model.source import open_source
from cortiq.models.bind import with_layouts
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert
from cortiq.options import LoadOptions
from cortiq.placement.place import place
from cortiq.plugins.selection import find_backend
from cortiq.ranks.local_program import local_program
from cortiq.ranks.shared_state import put_together, share_of

WIDTH = 48
ROWS = np.random.default_rng(7).standard_normal((sum(CHUNKS), WIDTH)).astype(np.float32)


def bound(layer: Any) -> tuple[Program, Mapping[str, Weight]]:
    """Return the layer as a program, and random weights for it: matrices in w8."""
    given = weights_for(layer, 3)
    matrices = [r for r, shape in layer.weight_shapes().items() if len(shape) > 1 and r != "conv"]
    weights = {**given, **{role: convert(given[role], "w8", role) for role in matrices}}
    return with_layouts(program_of(layer, {"x": ROWS}), weights), weights


def fed(executable: Any, program: Program) -> Streams:
    """Return the digests of every row of the layer, fed in chunks."""
    state, done, found = executable.open(64), 0, []
    want = Digest("y")
    for count in CHUNKS:
        rows = [Row(state, at, 0, (want,), {"x": ROWS[at]}) for at in range(done, done + count)]
        result = executable.forward(Batch(rows)).result()
        assert result.outcomes[state].status is Status.COMPLETED
        found += [[tuple(row[want])] for row in result.rows]
        done += count
    return found


def assert_layer(program: Program, weights: Mapping[str, Weight], counts: tuple[int, ...]) -> None:
    """Check that so many ranks compute a layer's bits."""
    backend = find_backend("cpu")[0]
    expected = fed(place(backend, program, weights, CompileOptions(threads=1)), program)
    assert len({str(row) for row in expected}) == len(ROWS)
    for ranks in counts:
        for found in by_ranks(backend, program, weights, ranks, feed=fed):
            assert found == expected, ranks


RECURRENT = ["tiny-lfm2", "mini-mamba", "mini-mamba2", "mini-jamba", "mini-qwen3_next",
             "mini-qwen3_5_text", "mini-kimi_linear", "mini-falcon_h1", "mini-granitemoehybrid",
             "mini-nemotron_h", "mini-zamba2"]  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrences_are_divided(name: str) -> None:
    """Heads of delta rules and state spaces, channels of convolutions: each has a state of its own,
    and the parts of all ranks add up to it; keys and values of a group are on all that need them.
    """
    program = open_source(f"synthetic:{name}", LoadOptions()).program
    shares = [local_program(program, rank, 2) for rank in range(2)]
    found = 0
    for slot, whole in program.slots.items():
        if isinstance(whole, KVRows):
            continue
        found += 1
        parts = [share.program.slots[slot].constant_bytes() for share in shares]
        assert max(parts) < whole.constant_bytes() <= sum(parts)
        if isinstance(whole, Recurrent):
            assert sum(parts) == whole.constant_bytes()
    assert found


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_groups_of_a_state_space(groups: int) -> None:
    """B and C of a group are on the ranks that have its heads, which may be several."""
    layer = Mamba2(WIDTH, 8, 6, 5, groups, 3, 1e-5, norm_groups=groups)
    program, weights = bound(layer)
    assert_layer(program, weights, (2, 3, 5))


LING = {"activation": None, "apart": True, "key_eps": 1e-6, "scale": 0.3, "norm_groups": 2}


@pytest.mark.parametrize(("heads", "options"), [(1, {}), (6, {}), (6, LING)])
def test_lightning_attention(heads: int, options: dict[str, Any]) -> None:
    """Decays that follow from no row are the same wherever its heads are; norms of groups of heads
    need them all.
    """
    program, weights = bound(LightningAttention(WIDTH, heads, 8, 1e-6, 0.3, 0.6, **options))
    assert_layer(program, weights, (2, 3))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("grouped", [(), ("qkvz", "ba")])
def test_orders_of_a_delta_nets_heads(tiled: bool, grouped: tuple[str, ...]) -> None:
    """Value heads beside one another, or in turn, have the keys of one head; both are divided."""
    layer = GatedDeltaNet(WIDTH, 6, 3, 5, 7, 3, 1e-6, grouped=grouped, tiled=tiled)
    program, weights = bound(layer)
    assert_layer(program, weights, (2, 3, 4))
    shares = [local_program(program, rank, 3).program.slots["state"] for rank in range(3)]
    heads = 6 if tiled and grouped else 2  # whose orders of heads have no common units
    assert [kind.shape[0] for kind in shares if isinstance(kind, Recurrent)] == [heads] * 3


@pytest.mark.parametrize("tiled", [False, True])
def test_states_are_cut_and_put_together(tiled: bool) -> None:
    """An exported sequence is the same after it was in shares, whatever order its heads have."""
    layer = GatedDeltaNet(WIDTH, 6, 3, 5, 7, 3, 1e-6, tiled=tiled)
    program, rng = program_of(layer, {"x": ROWS}), np.random.default_rng(5)
    slots = {
        "ring": rng.standard_normal((2, 72)).astype(np.float32),
        "state": rng.standard_normal((6, 5, 7)).astype(np.float32),
    }
    whole = ExportedState({"trunk": 0}, np.zeros(0, np.int32), slots)
    for ranks in (2, 3, 5):
        splits = local_program(program, 0, ranks).splits
        shares = [share_of(whole, splits, rank) for rank in range(ranks)]
        for rank, share in enumerate(shares):
            own: Any = local_program(program, rank, ranks).program.slots
            assert share.slots["state"].shape == own["state"].shape
            assert share.slots["ring"].shape == (2, own["ring"].width)
        again = put_together(shares, splits)
        assert all(np.array_equal(again.slots[name], slots[name]) for name in slots)
