"""Recurrent slots of the CPU backend: going back and moving give the bits of a straight run."""

from __future__ import annotations

import pytest

pytest.importorskip("cortiq_cpu")

import going_back

from cortiq.backend import CompileOptions
from cortiq_conformance.level0.recurrences import PROBES
from cortiq_cpu.backend import CpuBackend


@pytest.fixture(scope="module", params=PROBES)
def started(request):
    """An executable, rows for it, and what the reference brings for each of them."""
    found = going_back.started(request.param, CpuBackend(), CompileOptions(threads=2), 200)
    yield found
    found[0].close()


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129, 190])
@pytest.mark.parametrize("ahead", [1, 9, 64])
def test_rewind_is_never_having_gone_ahead(started, length, ahead):
    going_back.check_rewind(*started, length, ahead)


def test_a_moved_sequence_goes_back_to_where_it_came_or_to_its_start(started):
    going_back.check_move(*started, 150)
