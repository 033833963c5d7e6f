"""The MLX backend: levels 0 and 1 by itself, and what keeps its arithmetic exact."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cortiq_mlx
from cortiq.backend import CompileOptions, Declined
from cortiq.backend.plan import SharedMatMul
from cortiq.errors import BackendError
from cortiq.ir import layers
from cortiq_conformance import models
from cortiq_conformance.runner import run

mx = pytest.importorskip("mlx.core", reason="MLX has no wheel here", exc_type=ImportError)

from cortiq_mlx import exact_sums, join_heads, matrices, self_test  # noqa: E402
from cortiq_mlx.backend import MlxBackend  # noqa: E402

FILES = sorted(Path(cortiq_mlx.__file__).parent.glob("*.py"))
SEAM = {"backend", "ir", "numerics", "errors", "hookspecs"}
OWN_ORDER = {
    "mean", "var", "std", "prod", "cumprod", "cumsum", "sum", "softmax", "logsumexp", "logaddexp",
    "matmul", "einsum", "tensordot", "inner", "outer", "vecdot", "addmm", "block_masked_mm",
    "gather_mm", "gather_qmm", "quantized_matmul", "segmented_mm", "logcumsumexp", "linalg",
    "rsqrt", "reciprocal", "exp", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid",
    "erf", "sin", "cos", "power", "conv1d", "conv_general", "fast", "compile", "square",
}  # fmt: skip
"""What MLX computes in an order, or with roundings, of its own."""


@pytest.fixture(scope="module")
def small_levels():
    return run(MlxBackend(), levels=(0,))


@pytest.mark.parametrize("family", ["Attention", "MoE", "GatedDeltaNet"])
def test_layers_are_computed_by_mlx_alone(family):
    report = run(MlxBackend(), levels=(1,), only=f"level1/{family}[")
    assert report.passed and set(report.computed) == {"mlx"}, report.summary()


@pytest.mark.slow
def test_all_layers_are_computed_by_mlx_alone():
    report = run(MlxBackend(), levels=(1,))
    assert report.passed and set(report.computed) == {"mlx"}, report.summary()


def test_primitives_are_computed_by_mlx_alone(small_levels):
    assert small_levels.passed, small_levels.summary()
    assert {r.outcome.value for r in small_levels.results} == {"same"}
    assert set(small_levels.computed) == {"mlx"}


def test_only_the_public_seam_is_imported():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                package, _, rest = name.partition(".")
                assert not package.startswith("cortiq") or package in ("cortiq", "cortiq_mlx")
                assert package != "cortiq" or rest.split(".")[0] in SEAM, (file.name, name)


def forbidden(source):
    """Matmuls, sums and functions with an order or roundings of MLX's own, by line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            yield node.lineno, "@"
        if isinstance(node, ast.Attribute):
            of_mlx = isinstance(node.value, ast.Name) and node.value.id == "mx"
            if node.attr in OWN_ORDER and (of_mlx or node.attr in ("sum", "mean", "cumsum")):
                yield node.lineno, node.attr


def test_matmuls_and_sums_are_in_one_file():
    found = {file.name: list(forbidden(file.read_text())) for file in FILES}
    inside = found.pop("exact_sums.py")
    assert {what for _, what in inside} == {"@", "sum", "cumsum"}
    assert {what for _, what in found.pop("custom_kernels.py")} == {"fast"}
    text = (Path(cortiq_mlx.__file__).parent / "custom_kernels.py").read_text()
    assert text.count("mx.fast.") == text.count("mx.fast.metal_kernel if ") * 2 == 2
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "line", ["y = x @ w", "y = mx.matmul(x, w)", "y = x.sum(axis=1)", "y = mx.fast.rms_norm(x, w)"]
)
def test_the_lint_sees_what_it_forbids(line):
    assert list(forbidden(line))


def test_an_exact_matmul_takes_integers_within_its_bound_only():
    ones, floats = mx.ones((2, 64), mx.int8), mx.ones((64, 2))
    with pytest.raises(AssertionError, match="float32"):
        exact_sums.exact_matmul(ones, floats, 1, 1)
    with pytest.raises(AssertionError, match=r"64 products of 32512 and 16 exceed 2\^24"):
        exact_sums.exact_matmul(ones, ones.T, 32512, 16)
    with pytest.raises(AssertionError, match="do not fit"):
        exact_sums.exact_sum(mx.ones((1 << 9,), mx.int32), 0, 1 << 22)


def test_operands_keep_the_bounds_that_kernels_state():
    exact_sums.watching(True)
    try:
        report = run(MlxBackend(), levels=(0,), only="MatMul")
        assert report.passed, report.summary()
        report = run(MlxBackend(), levels=(0,), only="Attend")
        assert report.passed, report.summary()
        assert len(exact_sums.checks) > 300
        assert mx.stack(exact_sums.checks).all().item()
    finally:
        exact_sums.watching(False)


def test_a_float_matmul_in_place_of_the_written_order_is_found(monkeypatch):
    def planted(values, x, faults):
        faults.see(mx.zeros(faults.rows, mx.int32))
        return x @ values.swapaxes(1, 2)

    monkeypatch.setattr(matrices, "float_product", planted)
    report = run(MlxBackend(), levels=(0,), only="MatMul")
    different = [r.case for r in report.results if r.outcome.value == "different"]
    assert not report.passed and different
    assert all("f32" in case.id for case in different)


def test_query_key_and_value_are_one_product_and_their_heads_side_by_side():
    model = models.load("tiny-llama")
    executable = MlxBackend().compile(model.program, model.weights, CompileOptions())
    steps = executable.plans["trunk"].steps
    shared = [step for step in steps if isinstance(step.node.op, SharedMatMul)]
    assert shared and all(len(step.node.outputs) in (2, 3) for step in shared)
    sides = [step.node for step in steps if isinstance(step.node.op, join_heads.JoinedHeads)]
    joined = {(type(node.op.inner).__name__, len(node.outputs)) for node in sides}
    assert joined >= {("Rope", 2), ("Quantise", 3)}
    executable.close()


def test_layers_are_declined_with_a_reason_and_primitives_are_not():
    program = models.load("tiny-llama").program
    graph = program.trunk
    answers = {type(n.op): MlxBackend().supports(n, graph, program) for n in graph.nodes}
    assert answers[layers.Attention] == Declined("computed as its primitives")
    assert not any(isinstance(a, Declined) for op, a in answers.items() if op.primitive)


def test_what_computes_is_stated_for_receipts():
    model = models.load("tiny-llama")
    executable = MlxBackend().compile(model.program, model.weights, CompileOptions(device="cpu"))
    assert executable.provenance["mlx"] == mx.__version__
    assert executable.provenance["device"].endswith("CPU")
    executable.close()


def test_a_device_with_other_arithmetic_is_refused(monkeypatch):
    self_test.check_device.cache_clear()
    wrong = (lambda a, b: a + b * (1.0 + 2.0**-23), self_test.OPERATIONS["a + b"][1])
    monkeypatch.setitem(self_test.OPERATIONS, "a + b", wrong)
    with pytest.raises(BackendError, match=r"MLX on cpu computes a \+ b with other bits"):
        self_test.check_device("cpu")
    self_test.check_device.cache_clear()


def test_an_unknown_device_is_refused():
    model = models.load("tiny-llama")
    with pytest.raises(BackendError, match="mlx has no device 'npu'"):
        MlxBackend().compile(model.program, model.weights, CompileOptions(device="npu"))
