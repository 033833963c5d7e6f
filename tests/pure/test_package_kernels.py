"""An operator of a package's own: its bits on backends that have a kernel for it, and elsewhere."""

from __future__ import annotations

import sys

import pytest
from packaged import SOURCE, computed, mean_norm, with_package

from cortiq.backend import CompileOptions, Kernel
from cortiq.errors import BackendError
from cortiq_reference.backend import ReferenceBackend


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("options", [{}, {"fuse": False}])
def test_in_triton_it_has_the_bits_of_its_definition(monkeypatch, late, options):
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from cortiq_triton.backend import TritonBackend

    monkeypatch.setattr(sys, "path", [str(SOURCE.parent), *sys.path])
    plugins = with_package(ReferenceBackend(), TritonBackend())
    assert not plugins.problems
    expected, _ = computed(plugins.backends["reference"], late)
    found, placement = computed(plugins.backends["triton"], late, extra=options)
    assert found == expected
    assert {placement["y"], placement["w"]} == {"triton/mean-norm"}
    assert {placement["x"], placement["sum"]} == {"triton"}
