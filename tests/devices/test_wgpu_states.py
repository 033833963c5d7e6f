"""States of sequences on the wgpu backend: going back, moving, and what windows give up."""

from __future__ import annotations

import os
import tempfile

import adapter
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # software Vulkan asks for one

import going_back

from cortiq.backend import CompileOptions
from cortiq.ir import ops
from cortiq_conformance import models
from cortiq_conformance.level0.recurrences import PROBES
from cortiq_wgpu.backend import KERNELS, WgpuBackend

pytestmark = adapter.needed


@pytest.fixture(scope="module", params=[name for name in PROBES if getattr(ops, name) in KERNELS])
def started(request):
    """An executable, rows for it, and what the reference brings for each of them."""
    poisoned = CompileOptions(extra={"poison": True})
    found = going_back.started(request.param, WgpuBackend(), poisoned, 150)
    yield found
    found[0].close()


@pytest.mark.parametrize(("length", "ahead"), [(1, 9), (64, 64), (65, 63), (129, 20)])
def test_rewind_is_never_having_gone_ahead(started, length, ahead):
    going_back.check_rewind(*started, length, ahead)


def test_a_moved_sequence_goes_back_to_where_it_came_or_to_its_start(started):
    going_back.check_move(*started, 150)


def test_windowed_slots_stop_growing():
    """Two of four layers are seen through windows; their pages are used again."""
    model = models.load("tiny-gemma3")
    kept = CompileOptions(full_windows=True)
    growth = []
    for options in (CompileOptions(), kept):
        executable = WgpuBackend().compile(model.program, model.weights, options)
        growth.append(executable.state_bytes(64_000) - executable.state_bytes(32_000))
    assert growth[0] * 2 == growth[1]
