"""Operators that packages bring: every backend against the package's kernel for the reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cortiq.backend import OperatorExample
from cortiq.numerics.contract import F32
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.oracle import defined_by_packages
from cortiq_conformance.probes import one, vector

ROWS = 24


def cases() -> Iterator[Case]:
    """Yield a case for each example of an operator that an installed package brings."""
    for op, kernel in defined_by_packages().items():
        for number, example in enumerate(kernel.examples, start=1):
            what = f"{kernel.name}, example {number}"
            name = f"level0/{op.__name__}[{what}]"
            yield Case(name, 0, op.__name__, op.__name__, partial(_scenario, example))


def _scenario(example: OperatorExample, source: CaseData) -> Scenario:
    """Return random rows, and weights around 1."""
    op, types = example
    weights = {
        role: vector(F32(1) + source.floats(*shape) * F32(0.5))
        for role, shape in op.weight_shapes().items()
    }
    inputs = {
        "position" if type_.dtype == "i32" else f"x{number}": type_
        for number, type_ in enumerate(types)
    }
    return one(op, inputs, weights).scenario(source, ROWS, amplitude=3.0)
