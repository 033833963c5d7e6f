"""Recurrent slots of the CPU backend: going back and moving give the bits of a straight run."""

from __future__ import annotations

import pytest

pytest.importorskip("cortiq_cpu")

from sequences import same

from cortiq.backend import CompileOptions
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput, advance
from cortiq_conformance.level0.recurrences import PROBES
from cortiq_conformance.outputs import Named
from cortiq_cpu.backend import CpuBackend
from cortiq_reference.backend import ReferenceBackend

ROWS, CONTEXT, WANTS = 200, 256, (Named("y"),)


def rows(outcome):
    """Return the results of each row."""
    return [dict(row) for row in outcome]


@pytest.fixture(scope="module", params=PROBES)
def started(request):
    """An executable, rows for it, and what the reference brings for each of them."""
    probe = PROBES[request.param]()
    fed, options = probe.feed(CaseData(request.param), ROWS), CompileOptions(threads=2)
    reference = ReferenceBackend().compile(probe.program, probe.weights, options)
    expected = rows(advance(reference, reference.open(CONTEXT), fed, (0, ROWS), WANTS))
    executable = CpuBackend().compile(probe.program, probe.weights, options)
    yield executable, fed, expected
    executable.close()


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129, 190])
@pytest.mark.parametrize("ahead", [1, 9, 64])
def test_rewind_is_never_having_gone_ahead(started, length, ahead):
    executable, fed, expected = started
    state = executable.open(CONTEXT)
    for start in range(0, length, 50):
        advance(executable, state, fed, (start, min(start + 50, length)), WANTS)
    other = SequenceInput(fed.tokens[::-1], {name: x[::-1] for name, x in fed.inputs.items()})
    advance(executable, state, other, (length, min(length + ahead, ROWS)), WANTS)
    branch = state.fork(length)
    assert state.rewind(length) == length == state.length()
    for one in (state, branch):
        assert same(rows(advance(executable, one, fed, (length, ROWS), WANTS)), expected[length:])
        one.release()


def test_a_moved_sequence_goes_back_to_where_it_came_or_to_its_start(started):
    executable, fed, expected = started
    state, moved = executable.open(CONTEXT), executable.open(CONTEXT)
    advance(executable, state, fed, (0, 70), WANTS)
    moved.load(state.export())
    advance(executable, moved, fed, (70, 150), WANTS)
    assert moved.rewind(100) == 100
    assert moved.rewind(70) == 70
    assert same(rows(advance(executable, moved, fed, (70, ROWS), WANTS)), expected[70:])
    assert moved.rewind(60) == 0
    assert same(rows(advance(executable, moved, fed, (0, ROWS), WANTS)), expected)
    state.release()
    moved.release()
