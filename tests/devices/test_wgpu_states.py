"""States of sequences on the wgpu backend: going back, moving, and what windows give up."""

from __future__ import annotations

import os
import tempfile

import adapter
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # software Vulkan asks for one

from sequences import same

from cortiq.backend import CompileOptions
from cortiq_conformance import models
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput, advance
from cortiq_conformance.level0.recurrences import PROBES
from cortiq_conformance.outputs import Named
from cortiq_reference.backend import ReferenceBackend
from cortiq_wgpu.backend import WgpuBackend

ROWS, CONTEXT, WANTS = 150, 256, (Named("y"),)

pytestmark = adapter.needed


def rows(outcome):
    """Return the results of each row."""
    return [dict(row) for row in outcome]


@pytest.fixture(scope="module", params=PROBES)
def started(request):
    """An executable, rows for it, and what the reference brings for each of them."""
    probe = PROBES[request.param]()
    fed = probe.feed(CaseData(request.param), ROWS)
    reference = ReferenceBackend().compile(probe.program, probe.weights, CompileOptions())
    expected = rows(advance(reference, reference.open(CONTEXT), fed, (0, ROWS), WANTS))
    poisoned = CompileOptions(extra={"poison": True})
    executable = WgpuBackend().compile(probe.program, probe.weights, poisoned)
    yield executable, fed, expected
    executable.close()


@pytest.mark.parametrize(("length", "ahead"), [(1, 9), (64, 64), (65, 63), (129, 20)])
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
    advance(executable, moved, fed, (70, ROWS), WANTS)
    assert moved.rewind(100) == 100
    assert moved.rewind(70) == 70
    assert same(rows(advance(executable, moved, fed, (70, ROWS), WANTS)), expected[70:])
    assert moved.rewind(60) == 0
    assert same(rows(advance(executable, moved, fed, (0, ROWS), WANTS)), expected)
    state.release()
    moved.release()


def test_windowed_slots_stop_growing():
    """Two of four layers are seen through windows; their pages are used again."""
    model = models.load("tiny-gemma3")
    kept = CompileOptions(full_windows=True)
    growth = []
    for options in (CompileOptions(), kept):
        executable = WgpuBackend().compile(model.program, model.weights, options)
        growth.append(executable.state_bytes(64_000) - executable.state_bytes(32_000))
    assert growth[0] * 2 == growth[1]
