"""examples/jax_backend.py, where JAX is installed: the bits, and what it must be kept from."""

from __future__ import annotations

import runpy

import pytest
from pages import ROOT

from cortiq.backend.self_test import check_arithmetic
from cortiq.errors import BackendError
from cortiq_conformance import run

jax = pytest.importorskip("jax")
CASES = [
    "level0/Route[renormalised, chosen, 3 experts]",
    "level0/MatMul[Q4_K, 3 runs",
    "level0/MatMul[f32, 3 runs",
    "level0/LayerNorm[width 3]",
    "level0/planted NaN[Add,",
    "level0/rewind[convolution",
    "level0/Attend sinks[4 heads",
]


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(ROOT / "examples/jax_backend.py"))


@pytest.mark.parametrize("case", CASES)
def test_the_example_has_the_bits(example, case):
    report = run(example["JaxBackend"](), levels=(0,), only=case)
    assert report.passed and report.results, report.summary()


def test_a_compiled_expression_is_refused(example):
    arrays = example["JaxArrays"]
    compiled = jax.jit(arrays.inverse_root, static_argnums=0)
    library = type("Compiled", (arrays,), {"inverse_root": compiled})(jax.devices("cpu")[0])
    with pytest.raises(BackendError, match="`inverse_root` of Compiled rounds"):
        check_arithmetic("JAX", library)
