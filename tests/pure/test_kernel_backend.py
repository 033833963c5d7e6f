"""`KernelBackend`: what an author fills in, with the public names of `cortiq.backend` only."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import cortiq.backend
from cortiq.backend import (
    FLOAT64_KERNELS,
    FLOAT64_OPTIONS,
    MATRICES,
    Batch,
    CompileOptions,
    Declined,
    Device,
    Float64Matrix,
    KernelBackend,
    KernelTable,
    NumPyArrays,
    Row,
    float_weight,
)
from cortiq.errors import BackendError
from cortiq.ir import ops
from cortiq_conformance import models
from cortiq_conformance.operators import SAMPLES, operators
from cortiq_conformance.runner import run
from cortiq_conformance.scaffold import pinned, rendered
from cortiq_reference import delegate


class Whole(KernelBackend):
    """Every primitive, over an array library with float64."""

    name = "whole"

    def devices(self):
        return [Device("first"), Device("second")]

    def library(self, device, options):
        return NumPyArrays()

    def table(self):
        return KernelTable(FLOAT64_KERNELS, FLOAT64_OPTIONS)

    def prepare(self, library, op, role, weight, name):
        if isinstance(op, MATRICES):
            return Float64Matrix(library, weight, name)
        return library.array(float_weight(op, role, weight, name))


class Delegating(Whole):
    """A few kernels; the reference computes the others."""

    def __init__(self, *kinds, options=frozenset()):
        self.kernels, self.options = {kind: FLOAT64_KERNELS[kind] for kind in kinds}, options

    def table(self):
        return KernelTable(self.kernels, self.options)

    def others(self):
        return delegate()


FEW = ("level0/Attend[", "level0/MatMul[Q4_K", "level0/Route", "level0/DeltaRule", "level0/rewind")


@pytest.mark.parametrize("only", FEW)
def test_a_table_over_an_array_library_is_a_backend(only):
    report = run(Whole(), levels=(0,), only=only)
    assert report.results and report.passed, report.summary()
    assert set(report.computed) == {"whole"}


@pytest.mark.slow
def test_it_passes_levels_0_and_1_by_itself():
    report = run(Whole(), levels=(0, 1))
    assert report.passed, report.summary()
    assert set(report.computed) == {"whole"}


def test_every_name_of_this_backend_is_public():
    tree = ast.parse(inspect.getsource(inspect.getmodule(Whole)))
    seam = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and "backend" in n.module]
    assert {node.module for node in seam} == {"cortiq.backend"}
    assert {name.name for node in seam for name in node.names} <= set(cortiq.backend.__all__)


@pytest.mark.parametrize("only", [*FEW, "level0/export", "level0/CausalConv"])
def test_what_has_no_kernel_is_the_references_and_placement_says_so(only):
    report = run(Delegating(), levels=(0,), only=only)
    assert report.results and report.passed, report.summary()
    assert set(report.computed) == {"reference"}


@pytest.mark.parametrize("kinds", [(ops.StoreKV,), (ops.Attend,), (ops.StoreKV, ops.Attend)])
def test_state_is_shared_with_the_kernels_of_the_reference(kinds):
    report = run(Delegating(*kinds), levels=(0,), only="level0/rewind")
    assert report.passed, report.summary()
    assert set(report.computed) == {"whole", "reference"} or len(kinds) == 2


def test_an_option_that_a_kernel_does_not_know_goes_to_the_reference():
    known = run(Delegating(ops.Activation, options=frozenset({"silu"})), only="Activation[")
    assert known.passed, known.summary()
    assert set(known.computed) == {"whole", "reference"}
    assert run(Delegating(ops.Activation), only="Activation[").computed.keys() == {"reference"}


def test_a_wrong_kernel_is_found_and_a_delegated_one_is_not_blamed():
    class Wrong(Delegating):
        def table(self):
            return KernelTable({ops.Add: lambda call, a, b: a + b})

    report = run(Wrong(), levels=(0,), only="level0/Add[")
    assert not report.passed and report.blamed() == {"Add"}


def test_without_others_a_missing_kernel_or_option_is_declined_with_its_name():
    class Bare(Delegating):
        def others(self):
            return None

    program = models.load("tiny-llama").program
    graph = program.trunk
    node = dataclasses.replace(graph.nodes[0], op=ops.Activation("silu"), weights={}, slots={})
    answers = [Bare(*kinds).supports(node, graph, program) for kinds in ((), (ops.Activation,))]
    reasons = ["no kernel for Activation", "no kernel for Activation with silu"]
    assert answers == [Declined(reason) for reason in reasons]


def test_a_device_is_one_of_those_there_are():
    model = models.load("tiny-llama")
    with closing(Whole().compile(model.program, model.weights, CompileOptions(device="second"))):
        pass
    with pytest.raises(BackendError, match="whole has no device 'third'"):
        Whole().compile(model.program, model.weights, CompileOptions(device="third"))


def test_every_primitive_has_its_facts():
    facts = {op.name: op for op in operators()}
    assert set(SAMPLES) == set(ops.PRIMITIVES) and len(facts) == len(SAMPLES)
    for kind, (samples, inputs) in SAMPLES.items():
        for name in samples[0].weight_shapes():
            assert any(text.startswith(name) for text in facts[kind.__name__].weights)
        assert len(facts[kind.__name__].inputs) == len(inputs)
    texts = [text for op in facts.values() for text in (*op.inputs, *op.outputs, *op.weights)]
    assert not {size for text in texts for size in sizes(text) if size.isdigit()} - {"1"}


def sizes(text):
    """The sizes in a type's text."""
    return text.partition("[")[2].rpartition("]")[0].split(", ")


def test_all_stubs_is_a_module_with_a_function_for_every_primitive():
    text = dict(rendered("acme", stubs=True))["cortiq_acme/kernels.py"]
    scope = {}
    exec(compile(text, "kernels.py", "exec"), scope)
    assert scope["KERNELS"] == {}
    exec(compile(text.replace("    # ops.", "    ops."), "kernels.py", "exec"), scope)
    assert set(scope["KERNELS"]) == set(ops.PRIMITIVES)
    for kind, stub in scope["KERNELS"].items():
        count = len(SAMPLES[kind][1])
        assert next(iter(inspect.signature(stub).parameters)) == "call" and stub.__doc__
        with pytest.raises(NotImplementedError):
            stub(None, *[None] * count)


@pytest.mark.parametrize(
    ("version", "range_"),
    [("0.1.0", ">=0.1,<0.2"), ("0.12.3", ">=0.12,<0.13"), ("2.3.1", ">=2.3,<3")],
)
def test_a_package_is_pinned_to_versions_with_this_seam(version, range_):
    assert pinned(version) == range_
    assert f"cortiq{pinned('0.1.0')}" in dict(rendered("acme"))["pyproject.toml"]


def test_exported_state_that_is_too_small_becomes_zero_everywhere():
    """Values below 2⁻⁴⁰ are none that a primitive leaves behind."""
    model = models.load("tiny-lfm2")
    executable = Whole().compile(model.program, model.weights, CompileOptions())
    with closing(executable):
        state = executable.open(8)
        executable.forward(Batch([Row(state, at, at + 1) for at in range(4)])).result()
        exported = state.export()
        ring = next(n for n, s in exported.slots.items() if isinstance(s, np.ndarray))
        small = np.full_like(exported.slots[ring], 2.0**-60)
        given = dataclasses.replace(exported, slots={**exported.slots, ring: small})
        again = executable.import_(given, 8).export()
        assert not again.slots[ring].any()


SHARED = ("arithmetic", "array_*", "attention_kernels", "kernel_*", "matrices", "float64", "stores")
OWN_ORDER = {
    "sum", "mean", "var", "std", "prod", "cumsum", "softmax", "norm", "exp", "exp2", "expm1", "log",
    "log1p", "tanh", "sigmoid", "power", "matmul", "dot", "einsum", "reciprocal", "rsqrt",
}  # fmt: skip
"""What libraries compute in orders, or with roundings, of their own."""


def of_libraries(source):
    """Matmuls, and functions of arrays or of their module, by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield "@"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_ours = isinstance(node.func.value, ast.Name) and node.func.value.id in OURS
            if node.func.attr in OWN_ORDER and not of_ours:
                yield node.func.attr


OURS = ("self", "library")


def test_shared_kernels_add_and_multiply_by_libraries_only_where_integers_are_exact():
    folder = Path(cortiq.backend.__file__).parent
    files = [file for name in SHARED for file in folder.glob(f"{name}.py")]
    found = {file.name: set(of_libraries(file.read_text("utf-8"))) for file in files}
    assert len(found) > 9
    assert found.pop("float64.py") == found.pop("matrices.py") == {"@", "sum"}
    assert not any(found.values()), found


@pytest.mark.parametrize("line", ["y = a @ b", "y = x.sum(-1)", "y = self.module.exp(x)"])
def test_the_lint_sees_what_it_forbids(line):
    assert list(of_libraries(line))
