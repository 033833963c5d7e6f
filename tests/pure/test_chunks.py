"""Batches are computed in chunks of rows: none parts rows that see one another."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.backend.last_keys import chunks_of
from cortiq.ir import Builder, ops
from cortiq_reference.backend import ReferenceBackend

SIZE, WIDTH = 17, 8


def block_rows(sequences, size, state=None):
    """Rows of sequences that each are one block."""
    last = np.int32(size - 1)
    return [Row(state, i, 0, (), {"last": last}) for _ in range(sequences) for i in range(size)]


def test_chunks_follow_one_another_and_hold_whole_blocks():
    rows = block_rows(5, SIZE)
    assert list(chunks_of(rows, ("last",), 40)) == [(0, 34), (34, 68), (68, 85)]
    assert list(chunks_of(rows, ("last",), SIZE)) == [(n, n + SIZE) for n in range(0, 85, SIZE)]
    assert list(chunks_of(rows, (), 40)) == [(0, 40), (40, 80), (80, 85)]
    assert list(chunks_of([], ("last",), 40)) == []


def test_a_block_that_no_chunk_holds_is_a_longer_one():
    rows = block_rows(3, SIZE)
    assert list(chunks_of(rows, ("last",), 5)) == [(n, n + SIZE) for n in range(0, 51, SIZE)]


def program(window=None):
    """Rows that see keys up to one that they name."""
    b = Builder(context=512)
    b.input("token")
    b.input("position")
    q, k, v = (
        b.add(ops.Quantise(), b.input(name, (1, WIDTH), "f32"), name=f"{name}16") for name in "qkv"
    )
    b.add_node(ops.StoreKV(1, WIDTH, WIDTH), k, v, name="store", slots={"kv": "kv"})
    attend = ops.Attend(1, 1, WIDTH, WIDTH, 0.35, window, until=True)
    b.add(attend, q, b.input("last"), name="y", slots={"kv": "kv"})
    return b.program(("y",))


def answers(backend, sequences):
    """Return what each row of this many blocks attends to."""
    rng, rows = np.random.default_rng(2), []
    executable = backend.compile(program(), {}, CompileOptions(threads=1))
    for _ in range(sequences):
        state = executable.open(SIZE)
        for i in range(SIZE):
            given = {n: rng.standard_normal((1, WIDTH)).astype(np.float32) for n in "qkv"}
            given["last"] = np.int32(SIZE - 1)
            rows.append(Row(state, i, 0, (Named("y"),), given))
    return np.stack([row[Named("y")] for row in executable.forward(Batch(rows)).result().rows])


def test_many_blocks_in_one_batch_have_the_references_bits_on_the_cpu():
    cpu = pytest.importorskip("cortiq_cpu.backend").CpuBackend
    np.testing.assert_array_equal(answers(cpu(), 20), answers(ReferenceBackend(), 20))


def context_and_block(backend, context, **options):
    """Rows that see what is before them, then a block, in one batch; with a window of 64."""
    rng = np.random.default_rng(2)
    executable = backend.compile(program(64), {}, CompileOptions(threads=1, **options))
    state, rows = executable.open(context + SIZE), []
    for i in range(context + SIZE):
        given = {n: rng.standard_normal((1, WIDTH)).astype(np.float32) for n in "qkv"}
        given["last"] = np.int32(i if i < context else context + SIZE - 1)
        rows.append(Row(state, i, 0, (Named("y"),), given))
    return np.stack([row[Named("y")] for row in executable.forward(Batch(rows)).result().rows])


def test_a_block_is_not_parted_where_rows_behind_windows_are_given_up():
    whole = context_and_block(ReferenceBackend(), 250, full_windows=True)
    np.testing.assert_array_equal(context_and_block(ReferenceBackend(), 250), whole)
