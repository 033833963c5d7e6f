"""An operator of a package's own: its bits on backends that have a kernel for it, and elsewhere."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace

import pytest
from package_library import compiled
from packaged import SOURCE, computed, mean_norm, program, with_package

from cortiq.backend import Kernel
from cortiq.errors import BackendError
from cortiq.ir import ops
from cortiq.placement.place import declined_nodes, place
from cortiq_conformance.runner import run
from cortiq_cpu import NativeKernel
from cortiq_cpu.backend import CpuBackend
from cortiq_reference.backend import ReferenceBackend


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The package's C function, compiled as its page says."""
    made = tmp_path_factory.mktemp("mean-norm") / "mean_norm.so"
    return compiled(SOURCE.with_name("mean_norm.c"), made)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_in_c_it_has_the_bits_of_its_definition(library, monkeypatch, late, threads):
    monkeypatch.setenv("CORTIQ_MEAN_NORM", str(library))
    plugins = with_package(ReferenceBackend(), CpuBackend())
    assert not plugins.problems
    expected, _ = computed(plugins.backends["reference"], late)
    found, placement = computed(plugins.backends["cpu"], late, threads=threads)
    assert found == expected
    assert {placement["y"], placement["w"]} == {"cpu/mean-norm"}
    assert {placement["x"], placement["sum"]} == {"cpu"}


def test_without_a_kernel_the_reference_computes_it(monkeypatch):
    monkeypatch.delenv("CORTIQ_MEAN_NORM", raising=False)
    plugins = with_package(ReferenceBackend(), CpuBackend())
    reference = plugins.backends["reference"]
    expected, _ = computed(reference)
    found, placement = computed(plugins.backends["cpu"], fallback=reference)
    assert found == expected
    assert {placement["y"], placement["w"]} == {"reference/mean-norm"}
    assert {placement["x"], placement["sum"]} == {"cpu"}


def test_the_kit_compares_it_with_its_definition(library, monkeypatch):
    monkeypatch.setenv("CORTIQ_MEAN_NORM", str(library))
    plugins = with_package(ReferenceBackend(), CpuBackend())
    monkeypatch.setattr("cortiq_conformance.oracle.default_plugins", lambda: plugins)
    report = run(plugins.backends["cpu"], levels=(0,), only="level0/MeanNorm[")
    assert report.passed and len(report.results) == 3
    assert set(report.computed) == {"cpu/mean-norm"}
    given = plugins.backends["cpu"].given[mean_norm().MeanNorm]
    plugins.backends["cpu"].drop_kernel(given)
    other = NativeKernel(given.function.function, lambda op: mean_norm().Constants(1, 1, op.width))
    plugins.backends["cpu"].use_kernel(replace(given, function=other))
    wrong = run(plugins.backends["cpu"], levels=(0,), only="level0/MeanNorm[")
    assert not wrong.passed and wrong.blamed() == {"MeanNorm"}


@pytest.mark.parametrize(
    ("op", "function", "sentence"),
    [
        (ops.Add, len, r"takes a cortiq_cpu\.NativeKernel"),
        (ops.Add, NativeKernel(len), "is no function of a library that ctypes has loaded"),
        (ops.MatMul, NativeKernel(ctypes.CFUNCTYPE(None)(0)), "MatMul, which takes no kernel"),
    ],
)
def test_what_is_no_kernel_of_the_cpu_is_refused(op, function, sentence):
    with pytest.raises(BackendError, match=sentence):
        CpuBackend().use_kernel(Kernel("cpu", op, function, "wrong"))


def test_what_it_cannot_take_is_declined_with_the_reason(library):
    function = NativeKernel(ctypes.CDLL(str(library)).mean_norm)
    backend = CpuBackend()
    backend.use_kernel(Kernel("cpu", ops.StoreKV, function, "store"))
    backend.use_kernel(Kernel("cpu", ops.Quantise, function, "codes"))
    made, weights = program()
    executable = place(
        backend, made, weights, fallback=with_package(ReferenceBackend()).backends["reference"]
    )
    reasons = declined_nodes(executable)
    executable.close()
    assert reasons["stored"] == "the kernel cpu/store has no state, and this StoreKV has"
    assert "cpu/codes takes f32 and i32 values of the graph, not 'q'" in reasons["q"]


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
