"""Results of kernels are checked against the graph, on every backend that walks."""

from __future__ import annotations

import re
from importlib import import_module

import numpy as np
import pytest

from cortiq.backend import Batch, CompileOptions, Kernel, Row
from cortiq.errors import BackendError
from cortiq.ir import ops
from cortiq.numerics.quantise import Quantised
from cortiq_conformance import models
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.runner import run
from cortiq_reference.backend import ReferenceBackend

LIBRARIES = {"reference": "numpy", "torch": "torch", "mlx": "mlx.core"}


@pytest.fixture(params=LIBRARIES)
def backend(request):
    """A fresh backend and its array library."""
    library = pytest.importorskip(LIBRARIES[request.param])
    module = import_module(f"cortiq_{request.param}.backend")
    return getattr(module, f"{request.param.capitalize()}Backend")(), library


def cast(library, x):
    """Values of another type than float32."""
    if library.__name__ == "mlx.core":
        return x.astype(library.float16)
    return x.double() if library.__name__ == "torch" else x.astype(np.float64)


WRONG = {
    "another type": (cast, r"returned float(64|16)\[\d+, \d+\] for '.*'; it returns float32\["),
    "a row too few": (lambda lib, x: x[:-1], r"float32\[\d+, \d+\] for .* a row for each row"),
    "one value": (lambda lib, x: x[:, :1], r"returned float32\[\d+, 1\]"),
    "nothing": (lambda lib, x: None, r"returned None for"),
    "a number": (lambda lib, x: 1.5, r"returned 1\.5 for"),
    "a tuple": (lambda lib, x: (x, x), r"returned \("),
    "raises": (lambda lib, x: x[10**6].nothing, r"raised \w+: "),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_kernel_that_returns_something_else_is_named_with_node_and_operator(backend, kind):
    chosen, library = backend
    change, sentence = WRONG[kind]

    def wrong_add(call, a, b):
        return change(library, a + b)

    chosen.use_kernel(Kernel(chosen.name, ops.Add, wrong_add, "wrong"))
    report = run(chosen, levels=(0,), only="level0/Add[")
    assert report.results and {r.outcome for r in report.results} == {CaseOutcome.ERROR}
    for result in report.results:
        assert re.match(r"node '\w+', Add: the kernel .*wrong_add ", result.reason), result.reason
        assert re.search(sentence, result.reason), result.reason


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda q: q.q, r"int32\[6, \d+\] for '[\w.]+'; it returns quantised rows: q and e$"),
        (lambda q: Quantised(q.q.astype(np.int64), q.e), r"int64\[6, \d+\] for '[\w.]+, q'; it"),
        (lambda q: Quantised(q.q, q.e[:-1]), r"int32\[5\] for '[\w.]+, e'; it returns int32\[6\],"),
    ],
)
def test_both_parts_of_quantised_rows_are_checked(made, sentence):
    from cortiq_reference.kernels import KERNELS

    def wrong(call, x):
        return made(KERNELS[ops.Quantise](call, x))

    backend = ReferenceBackend()
    backend.use_kernel(Kernel("reference", ops.Quantise, wrong, "wrong"))
    (result, *_) = run(backend, levels=(0,), only="level0/Quantise[zeros").results
    assert result.outcome is CaseOutcome.ERROR
    assert re.search(sentence, result.reason), result.reason


def test_a_model_says_which_node_of_it_a_kernel_broke():
    backend = ReferenceBackend()
    backend.use_kernel(Kernel("reference", ops.RMSNorm, lambda call, x: x[1:], "wrong"))
    model = models.load("tiny-llama")
    executable = backend.compile(model.program, model.weights, CompileOptions(threads=1))
    state = executable.open(4)
    with pytest.raises(BackendError, match=r"node 'layers\.0\.[\w.]+', RMSNorm: the kernel"):
        executable.forward(Batch([Row(state, 0, 1)]))
    assert state.length() == 0
    executable.close()
