"""Array libraries of others: arrays that cannot be written to, and operations that round wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cortiq.backend import (
    FLOAT64_KERNELS,
    FLOAT64_OPTIONS,
    MATRICES,
    Device,
    Float64Matrix,
    FunctionalArrays,
    KernelBackend,
    KernelTable,
    NumPyArrays,
    float_weight,
)
from cortiq.backend.self_test import check_arithmetic
from cortiq.errors import BackendError
from cortiq_conformance import run


def frozen(array):
    """The same values, not to be written to."""
    array = np.array(array)
    array.flags.writeable = False
    return array


class FrozenArrays(FunctionalArrays, NumPyArrays):
    """NumPy as a library whose arrays cannot be written to."""

    def array(self, host):
        return frozen(host)

    def full(self, shape, dtype, value=0):
        return frozen(super().full(shape, dtype, value))

    def host(self, array):
        return np.array(array)

    def put(self, array, index, rows):
        changed = np.array(array)
        changed[index] = rows
        return frozen(changed)


class FrozenBackend(KernelBackend):
    """Every kernel over `FrozenArrays`."""

    name = "frozen"

    def devices(self):
        return [Device("cpu")]

    def library(self, device, options):
        return FrozenArrays()

    def table(self):
        return KernelTable(FLOAT64_KERNELS, FLOAT64_OPTIONS)

    def prepare(self, library, op, role, weight, name):
        if isinstance(op, MATRICES):
            return Float64Matrix(library, weight, name)
        return library.array(float_weight(op, role, weight, name))


FAMILIES = ["planted NaN", "edge of the domain", "rewind", "fork", "export", "HeadMatMul", "batch["]


@pytest.mark.parametrize("family", FAMILIES)
def test_arrays_that_cannot_be_written_to_have_the_bits(family):
    report = run(FrozenBackend(), levels=(0,), only=f"level0/{family}")
    assert report.passed and report.results, report.summary()


def test_the_self_test_accepts_numpy():
    check_arithmetic("NumPy", NumPyArrays())
    check_arithmetic("NumPy", FrozenArrays())


def times_the_inverse(library, a, b):
    return a * (np.float32(1) / b) if a.shape != b.shape else a / b


WRONG = {
    "quotient by one number a row": ("quotient", times_the_inverse),
    "inverse_root": ("inverse_root", lambda _, x: (1 / np.sqrt(x.astype("f8"))).astype("f4")),
    "canonical_sum": ("canonical_sum", lambda _, x: x.cumsum(-1, dtype=np.float32)[..., -1:]),
    "rounded": ("rounded", lambda _, x: np.trunc(x + np.copysign(np.float32(0.5), x))),
    "exp": ("exp", lambda _, x: np.exp(x)),
}


@pytest.mark.parametrize("check", WRONG)
def test_a_library_that_rounds_otherwise_is_refused_by_method(check):
    method, function = WRONG[check]
    library = type("Wrong", (NumPyArrays,), {method: function})()
    with pytest.raises(BackendError, match=rf"^here: `{re.escape(check)}` of Wrong rounds [1-9]"):
        check_arithmetic("here", library)


def test_a_library_that_returns_another_type_is_refused():
    wide = type("Wide", (NumPyArrays,), {"quotient": lambda _, a, b: a / b.astype("f8")})()
    with pytest.raises(BackendError, match=r"`quotient` of Wide returns float64\[32, 512\], not f"):
        check_arithmetic("here", wide)
