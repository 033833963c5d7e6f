"""The PyTorch backend: every level by itself, written against the public seam only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import cortiq_torch
from cortiq.backend import CompileOptions, Declined
from cortiq.backend.plan import SharedMatMul
from cortiq.errors import BackendError
from cortiq.ir import Builder, layers
from cortiq_conformance import models
from cortiq_conformance.runner import run
from cortiq_torch import self_test
from cortiq_torch.backend import TorchBackend

FILES = sorted(Path(cortiq_torch.__file__).parent.glob("*.py"))
SEAM = {"backend", "ir", "numerics", "errors", "hookspecs"}
OWN_ORDER = {
    "mean", "norm", "var", "std", "prod", "cumsum", "einsum", "softmax", "logsumexp", "layer_norm",
    "rms_norm", "exp", "exp2", "log2", "rsqrt", "reciprocal", "addcmul", "addcdiv", "addmm", "lerp",
    "fma", "compile",
}  # fmt: skip
"""What torch computes in an order, or with roundings, of its own."""


NO_KERNEL_YET: set[str] = set()
"""Operators that the backend declines, or declines with some of their options."""


@pytest.fixture(scope="module")
def small_levels():
    return run(TorchBackend(), levels=(0,), allow_declined=True)


@pytest.mark.slow
def test_layers_are_computed_by_torch_alone():
    report = run(TorchBackend(), levels=(1,))
    assert report.passed and set(report.computed) == {"torch"}, report.summary()


def test_primitives_are_computed_by_torch_alone(small_levels):
    assert small_levels.passed, small_levels.summary()
    assert set(small_levels.computed) == {"torch"}
    assert {r.outcome.value for r in small_levels.results} <= {"same", "declined"}
    declined = {r.case.op for r in small_levels.results if r.outcome.value == "declined"}
    assert declined == NO_KERNEL_YET


@pytest.mark.parametrize(
    ("level", "only"),
    [
        (1, "level1/Attention["),
        (1, "level1/MoE["),
        (2, "tiny-lfm2, 70 tokens, whole"),
        (2, "tiny-mixtral, 70 tokens, whole"),
        (2, "second entry[tiny-mtp"),
        (3, "tiny-gemma3, 3 prompts, in one batch"),
        (3, "tiny-lfm2, 3 prompts, with rewinds"),
        (4, "sampled batch[tiny-llama, 3 prompts, temperature 0.7"),
    ],
)
def test_graphs_and_streams(level, only):
    report = run(TorchBackend(), levels=(level,), only=only)
    assert report.passed, report.summary()
    assert set(report.computed) == {"torch"}


def test_only_the_public_seam_is_imported():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                package, _, rest = name.partition(".")
                assert not package.startswith("cortiq") or package in ("cortiq", "cortiq_torch")
                assert package != "cortiq" or rest.split(".")[0] in SEAM, (file.name, name)


def test_nothing_is_called_whose_order_is_torchs_own():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = node.attr if node.value.id == "torch" else ""
                assert called not in OWN_ORDER, (file.name, called)


def test_query_key_and_value_are_one_product():
    model = models.load("tiny-llama")
    executable = TorchBackend().compile(model.program, model.weights, CompileOptions())
    steps = executable.plans["trunk"].steps
    shared = [step for step in steps if isinstance(step.node.op, SharedMatMul)]
    assert shared and all(len(step.node.outputs) in (2, 3) for step in shared)
    executable.close()


def test_a_layer_is_claimed_and_others_are_declined_with_a_reason():
    program = models.load("tiny-llama").program
    graph = program.trunk
    answers = {type(n.op): TorchBackend().supports(n, graph, program) for n in graph.nodes}
    assert not isinstance(answers[layers.GatedMLP], Declined)
    assert answers[layers.Attention] == Declined("computed as its primitives")


@pytest.mark.parametrize("option", [{"above": 1.5}, {"interleaved": True}], ids=str)
def test_a_layer_with_more_options_is_computed_as_its_primitives(option):
    """Its kernel knows the plain form alone."""
    b = Builder(context=8, facts={"width": 8})
    b.input("position")
    op = layers.GatedMLP(8, 16, **option)
    weights = {role: role for role in op.weight_shapes()}
    b.add(op, b.input("x", (8,), "f32"), name="y", weights=weights)
    b.graph("trunk", ("y",))
    program = b.program()
    (node,) = program.trunk.nodes
    answer = TorchBackend().supports(node, program.trunk, program)
    assert answer == Declined("computed as its primitives")


def test_what_computes_is_stated_for_receipts():
    model = models.load("tiny-llama")
    executable = TorchBackend().compile(model.program, model.weights, CompileOptions())
    assert executable.provenance == {"torch": torch.__version__, "device": "cpu"}
    executable.close()


def test_a_device_with_other_arithmetic_is_refused(monkeypatch):
    self_test.check_device.cache_clear()
    wrong = (lambda a, b: torch.addcmul(a, a, b), self_test.OPERATIONS["a + b"][1])
    monkeypatch.setitem(self_test.OPERATIONS, "a + b", wrong)
    with pytest.raises(BackendError, match=r"torch on cpu computes a \+ b with other bits"):
        self_test.check_device("cpu")


def test_an_unknown_device_is_refused():
    model = models.load("tiny-llama")
    with pytest.raises(BackendError, match="torch has no device 'cuda:77'"):
        TorchBackend().compile(model.program, model.weights, CompileOptions(device="cuda:77"))
