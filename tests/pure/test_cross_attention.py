"""Attention over a slot that another entry writes: one result everywhere, and its refusals."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from installed import INTERPRETED, backends

from cortiq.backend import Batch, CompileOptions, Named, Row, Status
from cortiq.backend.windows import windows_of
from cortiq.ir import Builder, ops
from cortiq.ir.encoded import ENCODED, LAST_ENCODED, EncodedRows, most_rows
from cortiq.ir.layers import Embedding
from cortiq.numerics.attention import attend
from cortiq.numerics.layouts import Weight
from cortiq.numerics.quantise import quantise_rows
from cortiq.plugins.selection import find_backend
from cortiq_reference.ideal import evaluate

HEADS, GROUPS, DIM, MOST, PLACES = 4, 2, 8, 1300, 6
COUNTS = (70, 1, 1200)
"""Rows of the encoder, by sequence: more than a tile, one, more than a run of tiles."""
WANT = Named("y")


def program():
    """A trunk of few rows that attends to what the other entry stores, and to nothing else."""
    b = Builder(context=PLACES, facts={ENCODED: EncodedRows(MOST, DIM), "vocab_size": 2})
    b.input("token")
    place = b.add(Embedding(PLACES, HEADS * DIM), b.input("position"), name="place",
                  weights={"table": "places"})  # fmt: skip
    q = b.add(ops.Add(), b.input("q", (HEADS * DIM,), "f32"), place, name="placed")
    q = b.add(ops.Reshape((HEADS, DIM)), q, name="heads")
    op = ops.Attend(HEADS, GROUPS, DIM, DIM, 0.35, until=True)
    q = b.add(ops.Quantise(), q, name="codes")
    b.add(op, q, b.input(LAST_ENCODED), name="y", slots={"kv": "cross"})
    b.graph("trunk", ("y",))
    b.input("position")
    row = b.input(ENCODED, (GROUPS * DIM,), "f32")
    heads = b.add(ops.Reshape((GROUPS, DIM)), row, name="k.heads")
    k = b.add(ops.Quantise(), heads, name="k.codes")
    twice = b.add(ops.Scale(-2.0), heads, name="v.heads")
    v = b.add(ops.Quantise(), twice, name="v.codes")
    b.add_node(ops.StoreKV(GROUPS, DIM, DIM), k, v, name="store", slots={"kv": "cross"})
    b.graph(ENCODED, ())
    return b.program().with_layouts({"places": "f32"})


def places():
    return np.random.default_rng(5).standard_normal((PLACES, HEADS * DIM)).astype(np.float32)


def weights():
    return {"places": Weight.from_floats(places())}


def encoded(count):
    made = np.random.default_rng(count).standard_normal((count, GROUPS * DIM)) * 3
    return made.astype(np.float32)


def query(position, count):
    return np.random.default_rng([position, count]).standard_normal(HEADS * DIM).astype(np.float32)


def opened(name):
    backend, device = find_backend(name)
    options = CompileOptions(device=device or backend.devices()[0].name, threads=1)
    return backend.compile(program(), weights(), options)


def stored(executable, count, start=0):
    """A sequence that has seen so many rows of the encoder."""
    state, given = executable.open(MOST), encoded(count)
    rows = [Row(state, i, 0, (), {ENCODED: given[i]}) for i in range(start, count)]
    found = executable.forward(Batch(rows, ENCODED)).result()
    assert found.outcomes[state].status is Status.COMPLETED, found.outcomes[state]
    return state


def row(state, position, count, last=None):
    last = count - 1 if last is None else last
    given = {LAST_ENCODED: np.array(last, np.int32), "q": query(position, count)}
    return Row(state, position, 0, (WANT,), given)


@functools.cache
def answers(name):
    """What rows attend to: a batch of all sequences, and one row after that of each."""
    return computed(name)


def computed(name):
    executable = opened(name)
    states = [stored(executable, count) for count in COUNTS]
    pairs = list(zip(states, COUNTS, strict=True))
    batch = [row(state, at, count) for state, count in pairs for at in range(3)]
    made = [one[WANT] for one in executable.forward(Batch(batch)).result().rows]
    later = Batch([row(state, 3, count) for state, count in pairs])
    made += [one[WANT] for one in executable.forward(later).result().rows]
    forked = [state.fork() for state in states]
    again = Batch([row(state, 4, count) for state, count in zip(forked, COUNTS, strict=True)])
    made += [one[WANT] for one in executable.forward(again).result().rows]
    executable.close()
    return np.stack(made)


def test_the_reference_is_the_contracts_function_on_what_was_stored():
    ours, at = answers("reference"), 0
    for count in COUNTS:
        rows = encoded(count).reshape(count, GROUPS, DIM)
        keys, values = quantise_rows(rows), quantise_rows(rows * np.float32(-2))
        for position in range(3):
            q = query(position, count) + places()[position]
            q = quantise_rows(q.reshape(1, HEADS, DIM))
            last = np.array([count - 1], np.int32)
            wanted = attend(q, keys, values, last, 0.35)
            assert np.array_equal(ours[at], np.asarray(wanted).reshape(HEADS, DIM))
            at += 1


@pytest.mark.parametrize("name", [name for name in backends() if name != "reference"])
def test_every_backend_has_the_references_bits(name):
    np.testing.assert_array_equal(answers(name), answers("reference"))


@pytest.mark.skipif("wgpu" not in backends(), reason="there is no adapter")
def test_the_last_key_bounds_the_dispatches_not_the_position(monkeypatch):
    """Rows at positions below 6 see keys of two runs, each of which is a dispatch of its own."""
    from cortiq_wgpu import plan, step_dispatches

    monkeypatch.setattr(plan, "SCRATCH_BYTES", 64)
    monkeypatch.setattr(step_dispatches, "MOST_TURNS", 432)
    np.testing.assert_array_equal(computed("wgpu"), answers("reference"))


def test_the_last_key_bounds_the_tiles_not_the_position(monkeypatch):
    """A row at position 0 sees keys of three tiles, for which Triton's states are kept."""
    rowset = pytest.importorskip("cortiq_triton.rowset", reason="Triton is not here")
    if "triton" not in INTERPRETED:
        pytest.skip("kernels are compiled: tests of every backend hold of Triton, too")
    tiles = rowset.RowSet.most_tiles

    def most_tiles(rows, window):
        if not window and rows.count == 1:
            assert rows.last == 129  # less would write beyond what is allocated
        return tiles(rows, window)

    monkeypatch.setattr(rowset.RowSet, "most_tiles", most_tiles)
    made = []
    for name in ("triton", "reference"):
        executable = opened(name)
        batch = Batch([row(stored(executable, 130), 0, 130)])
        made.append(executable.forward(batch).result().rows[0][WANT])
        executable.close()
    np.testing.assert_array_equal(*made)


def test_the_formula_in_float64_is_near():
    count, slots = COUNTS[0], {}
    given = (program(), weights())
    evaluate(*given, [0] * count, [], ENCODED, {ENCODED: encoded(count)}, slots)
    inputs = {"q": np.stack([query(at, count) for at in range(3)]),
              LAST_ENCODED: np.full(3, count - 1)}  # fmt: skip
    exact = evaluate(*given, [0] * 3, ["y"], inputs=inputs, stored=slots)["y"]
    assert np.abs(answers("reference")[:3] - exact).max() < 1e-3 * np.abs(exact).max()


@pytest.mark.parametrize("name", backends())
def test_keys_that_are_not_stored_and_positions_without_a_row_are_refused(name):
    executable = opened(name)
    state = stored(executable, 70)

    def outcome(rows, entry="trunk"):
        found = executable.forward(Batch(rows, entry)).result().outcomes[state]
        return found.status, found.reason

    status, why = outcome([row(state, 0, 70, last=70)])
    assert status is Status.DECLINED and "'encoded' has seen 70 rows" in why
    status, why = outcome([row(state, at, 70) for at in range(PLACES + 1)])
    assert status is Status.DECLINED and f"{PLACES} learned positions" in why
    assert state.length() == 0 and outcome([row(state, 0, 70)])[0] is Status.COMPLETED
    executable.close()


def test_what_another_entry_stored_is_kept_and_carried():
    executable = opened("reference")
    state = stored(executable, 70)
    first = executable.forward(Batch([row(state, 0, 70)])).result().rows[0][WANT]
    moved = executable.import_(state.export(), MOST)
    assert state.rewind(0) == 0 and state.length(ENCODED) == moved.length(ENCODED) == 70
    again = executable.forward(Batch([row(state, 0, 70)])).result().rows[0][WANT]
    moved.rewind(0)
    there = executable.forward(Batch([row(moved, 0, 70)])).result().rows[0][WANT]
    assert np.array_equal(first, again) and np.array_equal(first, there)
    assert windows_of(program()) == {} and most_rows(program()) == MOST
