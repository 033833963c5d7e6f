"""Kernels that third parties bring: taken by the backend they are for, named by placement."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from cortiq.backend import CompileOptions, Kernel
from cortiq.errors import BackendError
from cortiq.hookspecs import hookimpl
from cortiq.ir import layers, ops
from cortiq.numerics.contract import snap
from cortiq.plugins import load_plugins
from cortiq_conformance import models
from cortiq_conformance.runner import run
from cortiq_reference.backend import ReferenceBackend
from cortiq_torch.backend import TorchBackend


def add(call, a, b):
    return snap(a + b, call.faults)


def torch_add(call, a, b):
    return call.library.snap(torch.add(a, b), call.faults)


def returning(found):
    def hook():
        return found

    return hook


def entry(name, **hooks):
    """An entry point whose plugin has these hooks."""
    plugin = ModuleType(name)
    for hook, found in hooks.items():
        setattr(plugin, f"cortiq_{hook}", hookimpl(returning(found)))
    return SimpleNamespace(name=name, value=name, dist=None, load=lambda: plugin)


def loaded(*kernels, backend=None):
    points = [entry("owner", backends=[backend or ReferenceBackend()])]
    points += [entry(f"third{at}", kernels=found) for at, found in enumerate(kernels)]
    return load_plugins(points)


@pytest.mark.parametrize(
    ("backend", "function"), [(ReferenceBackend, add), (TorchBackend, torch_add)]
)
def test_the_backend_uses_it_and_placement_names_it(backend, function):
    kernel = Kernel(backend.name, ops.Add, function, "plain-add")
    plugins = loaded([kernel], backend=backend())
    assert not plugins.problems
    chosen = plugins.backends[backend.name]
    report = run(chosen, levels=(0,), only="level0/Add[")
    assert report.passed and set(report.computed) == {f"{backend.name}/plain-add"}
    stream = run(chosen, levels=(2,), only="graph[tiny-llama")
    assert stream.passed and any("plain-add" in owner for owner in stream.computed)


def test_a_wrong_kernel_is_found_like_any_other():
    wrong = Kernel("reference", ops.Add, lambda call, a, b: a + b, "no-snap")
    plugins = loaded([wrong])
    report = run(plugins.backends["reference"], levels=(0,), only="level0/Add[")
    assert not report.passed and report.blamed() == {"Add"}


def test_a_layer_with_such_a_kernel_inside_is_computed_by_both():
    backend = loaded([Kernel("reference", ops.Add, add, "plain-add")]).backends["reference"]
    model = models.load("tiny-llama")
    executable = backend.compile(model.program, model.weights, CompileOptions(threads=1))
    owners = {type(n.op): executable.placement[n.name] for n in model.program.trunk.nodes}
    assert owners[layers.Residual] == "reference/plain-add"
    assert owners[layers.GatedMLP] == "reference"
    executable.close()


def test_on_torch_a_kernel_reaches_the_primitives_of_a_claimed_layer():
    calls = []

    def multiply(call, a, b):
        calls.append(call.op)
        return call.library.snap(a * b, call.faults)

    kernel = Kernel("torch", ops.Multiply, multiply, "counted")
    backend = loaded([kernel], backend=TorchBackend()).backends["torch"]
    assert run(backend, levels=(2,), only="graph[tiny-llama").passed
    assert calls


@pytest.mark.parametrize(
    ("kernels", "sentence"),
    [
        ([object()], "is no cortiq.backend.Kernel"),
        ([Kernel("reference", layers.Linear, add, "x")], "'x' is for no primitive"),
        ([Kernel("reference", ops.Add, None, "x")], "the function of reference/x is None"),
        ([Kernel("reference", ops.Add, add, "a/b")], "cannot be the name of a kernel"),
        ([Kernel("vulcan", ops.Add, add, "x")], "for the backend 'vulcan'; there are reference"),
        ([Kernel("reference", ops.Add, add, "x")] * 2, "are both for Add"),
    ],
)
def test_a_kernel_that_cannot_be_used_is_a_sentence(kernels, sentence):
    plugins = loaded(kernels)
    (problem,) = plugins.problems
    assert problem.name == "third0" and sentence in problem.sentence
    assert not plugins.backends["reference"].given


def test_of_two_plugins_for_one_primitive_the_second_is_the_problem():
    first = [Kernel("reference", ops.Add, add, "first")]
    second = [Kernel("reference", ops.Scale, add, "s"), Kernel("reference", ops.Add, add, "second")]
    plugins = loaded(first, second)
    (problem,) = plugins.problems
    assert "reference/second and first are both for Add" in problem.sentence
    given = plugins.backends["reference"].given
    assert set(given) == {ops.Add} and given[ops.Add].name == "first"


def test_a_backend_that_takes_no_kernels_says_so():
    class Closed(ReferenceBackend):
        name = "closed"
        use_kernel = property()

    plugins = loaded([Kernel("closed", ops.Add, add, "x")], backend=Closed())
    assert "takes no kernels" in plugins.problems[0].sentence


def test_a_kernel_can_be_taken_back():
    backend = ReferenceBackend()
    kernel = Kernel("reference", ops.Add, add, "x")
    backend.use_kernel(kernel)
    with pytest.raises(BackendError, match="CORTIQ_PLUGINS"):
        backend.use_kernel(kernel)
    backend.drop_kernel(kernel)
    assert not backend.given and not ReferenceBackend().given
    assert np.array_equal(add(SimpleNamespace(faults=None), np.ones(1), np.ones(1)), [2])
