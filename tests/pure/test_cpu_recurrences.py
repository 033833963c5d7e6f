"""The native recurrence, on every instruction set of this machine: bits of the contract's steps."""

from __future__ import annotations

import numpy as np
import pytest
from native_ops import PATHS, address, run_ops

from cortiq.ir import Recurrent
from cortiq.numerics import recurrent
from cortiq.numerics.contract import F32, snap
from cortiq_cpu.arguments import SEGMENT, OpKind
from cortiq_cpu.packing import aligned_floats
from cortiq_cpu.recurrent_states import RecurrentLayout

SHAPES = [(2, 128, 72), (2, 128, 32), (2, 40, 33), (1, 300, 5)]
"""Heads, rows of the state, columns: several blocks, one, and what is left over everywhere."""
ROWS, GROUPS = 7, 1
BATCHES = (1, 5, 1)


@pytest.fixture(params=PATHS)
def path(request):
    return request.param


def canonical(rng, *shape, low=-8):
    """Values of many sizes, a few of them zero."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(low, 1, shape)
    return snap((x * (rng.random(shape) > 0.02)).astype(F32))


def inputs_of(shape, channels, rng, diagonal=False):
    """q, k, v, alpha and beta of the rows, and kappa."""
    heads, rows, columns = shape
    q, k = canonical(rng, 2, ROWS, GROUPS, rows)
    decays = (ROWS, heads, rows) if channels else (ROWS, heads)
    alpha = snap(rng.random(decays).astype(F32))
    if diagonal:
        values = canonical(rng, ROWS, heads, columns)
        return [*canonical(rng, 2, ROWS, heads, rows), values, alpha,
                *canonical(rng, 2, ROWS, heads, rows)]  # fmt: skip
    return [
        *(q, k, canonical(rng, ROWS, heads, columns), alpha),
        snap(rng.random((ROWS, heads)).astype(F32)),
    ]


def run(path, layout, memory, given):
    """Outputs and faults of the rows, in batches."""
    out, faults, start = np.full_like(given[2], 7), [], 0
    for count in BATCHES:
        struct = layout.args()
        parts = [np.ascontiguousarray(x[start : start + count]) for x in given]
        struct.q, struct.k, struct.v, struct.alpha, struct.beta, *kappa = map(address, parts)
        struct.kappa = kappa[0] if kappa else None
        struct.out = address(out[start:])
        pointer = np.array([memory.ctypes.data], np.uint64)
        segment, number = np.array([(0, count, start)], SEGMENT), np.array([1], np.int32)
        struct.states, struct.segments = address(pointer), address(segment)
        struct.segment_count = address(number)
        faults.append(run_ops(path, count, (OpKind.GATED_DELTA, struct)))
        start += count
    return out, np.concatenate(faults)


def expected(layout, state, given):
    """Compute the same by the contract's definition."""
    q, k, v, alpha, beta, *kappa = given
    faults = np.zeros(ROWS, bool)
    if kappa:
        rows = (q, k, v, alpha, *kappa, beta)
        done = recurrent.in_order(recurrent.diagonal_delta_step, state, rows, faults)
    elif layout.delta:
        done = recurrent.in_order(recurrent.delta_step, state, given, faults)
    else:
        done = recurrent.in_order(recurrent.state_space_step, state, (v, k, q, alpha, beta), faults)
    return *done, faults


@pytest.mark.parametrize("kind", ["delta", "channels", "space", "diagonal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("large", [False, True], ids=["usual", "to the edge"])
def test_rows_and_state_are_those_of_the_steps(path, shape, kind, large):
    rng = np.random.default_rng(shape[1] + large)
    diagonal = kind == "diagonal"
    groups, channels = shape[0] if diagonal else GROUPS, kind in ("channels", "diagonal")
    layout = RecurrentLayout(Recurrent(shape), groups, channels, kind != "space", diagonal)
    given, before = inputs_of(shape, channels, rng, diagonal), canonical(rng, *shape, low=-50)
    if large:
        before *= F32(2.0**47)
        given[3][:3] += F32(3)
    memory = aligned_floats(layout.size)
    layout.write(memory, before, 0)
    out, faults = run(path, layout, memory, given)
    after, exact, failed = expected(layout, before, given)
    assert np.array_equal(out.view(np.int32), exact.view(np.int32))
    assert np.array_equal(layout.read(memory).view(np.int32), after.view(np.int32))
    assert np.array_equal(faults, failed)
    assert faults.any() == large
