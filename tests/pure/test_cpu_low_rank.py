"""Overlays' low-rank products on the CPU: one op, against the definitions, bit for bit."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("cortiq_cpu")
from cpu_products import assert_same_bits, run

from cortiq.backend.fuse import FusedLowRank
from cortiq.backend.lower import joined_products, lower
from cortiq.ir import ops, primitives_of
from cortiq.ir.overlay_graphs import with_overlays
from cortiq.ir.overlays import OverlayChange, changeable
from cortiq.numerics.layouts import Weight, decode
from cortiq.numerics.matmul import matmul
from cortiq.numerics.quantise import quantise_rows
from cortiq.numerics.scalar import add
from cortiq.numerics.weights import convert
from cortiq_cpu.arguments import OpKind
from cortiq_cpu.fuse import fuser
from cortiq_cpu.matmul_arguments import LowRankArgs, LowRankPartArgs
from cortiq_cpu.native import library, supported_isas
from cortiq_cpu.packing import PackedMatrix, aligned
from cortiq_cpu.quantised_rows import records_of

MEMBERS, WIDTH, THREADS = 4, 80, 2
PARTS = ((16, 300), (33, 40), (1, 17))
"""Rank and outputs of each weight of the row."""


def bank(rng, height, width):
    """Stacks of float32 in w16; of A, which is wider than high, member 2 is zero."""
    values = rng.standard_normal((MEMBERS, height, width)).astype(np.float32)
    if width == WIDTH:
        values[2] = 0
    return convert(Weight.from_floats(values.reshape(-1, width)), "w16", "bank")


def member(weight, number, height):
    return decode(weight.rows(number * height, (number + 1) * height))


def defined(x, a, b, base, choice, rank, height):
    """The sums of all rows, and which of them have a fault, overlay by overlay."""
    out, faults = np.empty_like(base), np.zeros(len(x), np.bool_)
    for number in range(MEMBERS):
        rows, one = np.flatnonzero(choice == number), np.zeros(np.sum(choice == number), np.bool_)
        r = matmul(quantise_rows(x[rows]), member(a, number, rank), one)
        d = matmul(quantise_rows(r), member(b, number, height), one)
        out[rows] = add(base[rows], d, one)
        faults[rows] = one
    return out, faults


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_sums_are_those_of_the_definition(rows, isa):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
    choice = rng.integers(0, MEMBERS, rows).astype(np.int32)
    choice[: rows // 3] = 1  # a group larger than the kernel's
    records, flags = records_of(quantise_rows(x)), np.zeros(rows, np.uint8)
    workspace = aligned(library().cortiq_low_rank_workspace(33, THREADS))
    args = LowRankArgs(records.ctypes.data, choice.ctypes.data, workspace.ctypes.data, len(PARTS))
    kept, wanted, faulty = [], [], np.zeros(rows, np.bool_)
    for number, (rank, height) in enumerate(PARTS):
        a, b = bank(rng, rank, WIDTH), bank(rng, height, rank)
        base, out = rng.standard_normal((2, rows, height)).astype(np.float32)
        base[-1, 0] = 2.0**50 - 2.0**27
        packed = PackedMatrix(a, "a", MEMBERS), PackedMatrix(b, "b", MEMBERS)
        changes = packed[0].changes()
        assert changes.tolist() == [1, 1, 0, 1]
        addresses = [one.address for one in packed]
        addresses += [one.ctypes.data for one in (changes, base, out)]
        args.parts[number] = LowRankPartArgs(*addresses)
        kept.append((packed, changes, base, out))
        wanted.append(defined(x, a, b, base, choice, rank, height))
        faulty |= wanted[-1][1]
    run(isa, THREADS, OpKind.LOW_RANK, ctypes.c_int32(rows), flags, args)
    for (_, _, _, out), (sums, _) in zip(kept, wanted, strict=True):
        assert_same_bits(out, sums)
    assert np.array_equal(flags.astype(bool), faulty)


def test_no_product_of_an_overlay_is_a_step_of_its_own(small_llama):
    """Weights of one row share a step, in the trunk and in the tail."""
    changes = {key: OverlayChange(4) for key in changeable(small_llama) if not key[1]}
    program = with_overlays(small_llama, 3, changes)
    wanted = frozenset({"logits"})
    lowered = joined_products(lower(primitives_of(program).trunk, wanted))
    made = fuser(lowered, wanted, frozenset())
    for steps in (made.fuse(lowered.trunk), made.fuse(lowered.tail)):
        found = [step for step in steps if isinstance(step.op, FusedLowRank)]
        assert found and not any(isinstance(step.op, ops.ExpertMatMul) for step in steps)
        rows = [step.inputs[0] for step in found]
        assert len(rows) == len(set(rows)) and any(len(step.op.parts) > 1 for step in found)


@pytest.fixture(scope="module")
def small_llama():
    from cortiq.model.source import open_source
    from cortiq.options import LoadOptions

    return open_source("synthetic:tiny-llama?seed=1&format=w8", LoadOptions(context=32)).program
