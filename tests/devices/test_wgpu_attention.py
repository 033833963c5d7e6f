"""Attention over thousands of keys: runs side by side, in turn, and in several dispatches."""

from __future__ import annotations

import os
import tempfile

import adapter
import numpy as np
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # software Vulkan asks for one

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.errors import BackendError
from cortiq.ir import Builder, ops
from cortiq_reference.backend import ReferenceBackend
from cortiq_wgpu import plan, step_dispatches
from cortiq_wgpu.backend import WgpuBackend

HEADS, WIDTH, LENGTH, CHUNK = 2, 8, 2200, 700
WANT = Named("y")


pytestmark = adapter.needed


def program():
    """One head of keys and values for two of queries."""
    b = Builder(context=4096)
    b.input("token")
    position = b.input("position")
    given = {name: (HEADS if name == "q" else 1, WIDTH) for name in "qkv"}
    q, k, v = (
        b.add(ops.Quantise(), b.input(name, shape, "f32"), name=f"{name}16")
        for name, shape in given.items()
    )
    b.add_node(ops.StoreKV(1, WIDTH, WIDTH), k, v, name="store", slots={"kv": "kv"})
    attend = ops.Attend(HEADS, 1, WIDTH, WIDTH, 0.35)
    b.add(attend, q, position, name="y", slots={"kv": "kv"})
    return b.program(("y",))


@pytest.fixture(scope="module")
def fed():
    rng = np.random.default_rng(1)
    shapes = {"q": (HEADS, WIDTH), "k": (1, WIDTH), "v": (1, WIDTH)}
    return [
        {name: 2 * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(LENGTH)
    ]


def answers(backend, fed):
    """Return the attention of every 97th row and of the last."""
    executable = backend.compile(program(), {}, CompileOptions())
    state, found = executable.open(LENGTH), []
    for start in range(0, LENGTH, CHUNK):
        rows = [
            Row(state, i, 0, (WANT,) if i % 97 == 0 or i == LENGTH - 1 else (), fed[i])
            for i in range(start, min(LENGTH, start + CHUNK))
        ]
        result = executable.forward(Batch(rows)).result()
        found += [row[WANT] for row in result.rows if row]
    return np.stack(found)


@pytest.fixture(scope="module")
def expected(fed):
    return answers(ReferenceBackend(), fed)


@pytest.mark.parametrize(
    ("scratch", "turns"),
    [(plan.SCRATCH_BYTES, step_dispatches.MOST_TURNS), (64, step_dispatches.MOST_TURNS), (64, 480)],
    ids=["runs side by side", "one after another", "in several dispatches"],
)
def test_runs_of_keys_add_up_to_the_same_bits(scratch, turns, fed, expected, monkeypatch):
    monkeypatch.setattr(plan, "SCRATCH_BYTES", scratch)
    monkeypatch.setattr(step_dispatches, "MOST_TURNS", turns)
    np.testing.assert_array_equal(answers(WgpuBackend(), fed), expected)


def blocks():
    """Rows that see keys up to one that they name."""
    b = Builder(context=512)
    b.input("token")
    b.input("position")
    q, k, v = (
        b.add(ops.Quantise(), b.input(name, (1, WIDTH), "f32"), name=f"{name}16") for name in "qkv"
    )
    b.add_node(ops.StoreKV(1, WIDTH, WIDTH), k, v, name="store", slots={"kv": "kv"})
    attend = ops.Attend(1, 1, WIDTH, WIDTH, 0.35, until=True)
    b.add(attend, q, b.input("last"), name="y", slots={"kv": "kv"})
    return b.program(("y",))


def in_blocks(backend, sequences, size):
    """Sequences of rows that all see one another, in one batch."""
    rng = np.random.default_rng(2)
    executable = backend.compile(blocks(), {}, CompileOptions())
    rows = []
    for _ in range(sequences):
        state = executable.open(size)
        for i in range(size):
            given = {n: rng.standard_normal((1, WIDTH)).astype(np.float32) for n in "qkv"}
            rows.append(Row(state, i, 0, (WANT,), {**given, "last": np.int32(size - 1)}))
    result = executable.forward(Batch(rows)).result()
    return np.stack([row[WANT] for row in result.rows])


def test_a_block_of_rows_is_not_cut_where_a_chunk_ends():
    expected = in_blocks(ReferenceBackend(), 20, 17)
    np.testing.assert_array_equal(in_blocks(WgpuBackend(), 20, 17), expected)


def test_a_block_larger_than_a_chunk_is_one_chunk():
    size = plan.TRUNK_ROWS + 1
    np.testing.assert_array_equal(
        in_blocks(WgpuBackend(), 1, size), in_blocks(ReferenceBackend(), 1, size)
    )


def test_a_block_larger_than_a_dispatch_is_refused(monkeypatch):
    monkeypatch.setattr(plan, "MOST_GROUPS", 256)
    with pytest.raises(BackendError, match="257 rows see one another"):
        in_blocks(WgpuBackend(), 1, 257)
