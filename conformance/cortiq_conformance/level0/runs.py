"""Three and four runs of a written order, the last one short, under few outputs.

Two terms have one order: a + b is b + a. Only a sum of three terms or more depends on its order,
and only four can be added in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.backend import Named, Top
from cortiq.ir import ops
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.layouts import LAYOUTS
from cortiq.numerics.route import Router
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_weights import MATRIX_LAYOUTS, uneven
from cortiq_conformance.level0 import elementwise, matrices, recurrences, scaling
from cortiq_conformance.level0.foundations import in_few_lanes
from cortiq_conformance.level0.tails import rows as of_logits
from cortiq_conformance.probes import ProbeProgram

BLOCKS = {3: 8 + 8 + 3, 4: 8 + 8 + 8 + 4}
"""Blocks of a product's row, by the number of its runs; as many meet in the last run."""
TERMS = {3: 600, 4: 900}
"""Terms of a canonical sum, by how many meet in a lane."""
ROWS = (1, 3, 67)
"""Rows that a product is given at a time: backends have kernels for few and for many."""
OUTPUTS = 10
STACKS: Mapping[str, Callable[[CaseData, str, int], ProbeProgram]] = {
    "HeadMatMul": lambda s, layout, least: matrices.head_matmul(s, layout, least, OUTPUTS),
    "ExpertMatMul": lambda s, layout, least: matrices.expert_matmul(s, layout, True, least, 6),
}
STACK_LAYOUTS = ("Q4_K", "Q4_1", "f32")
"""Of those that stacks are tried with, the layouts that add floats."""


def cases() -> Iterator[Case]:
    """Yield the cases of products, sums and experts in which three and four runs meet."""
    for runs in (3, 4):
        yield from _products(runs)
        for (op, what), make in _sums(runs).items():
            yield _case(op, op, f"{what}, {runs} to a lane", make)
        for (op, what), make in _experts(runs).items():
            yield _case(op, op, what, make)
    for chosen in (3, 4, 6):
        what = f"all of the weight of {chosen}"
        yield _case("Route", "Route", what, partial(_everything, chosen))


def _case(family: str, op: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, op, build)


def adds_floats(layout: str) -> bool:
    """Return whether products with the layout add floats; one block a row adds integers."""
    return LAYOUTS[layout].kind == "float" or LAYOUTS[layout].block > 0


def _columns(layout: str, runs: int) -> int:
    """Return the columns that make so many runs; the last block is short if possible."""
    kind = LAYOUTS[layout]
    if kind.kind == "float":
        return TERMS[runs]
    return BLOCKS[runs] * kind.block - (100 if kind.kind == "parts" else 0)


def _products(runs: int) -> Iterator[Case]:
    for layout in filter(adds_floats, MATRIX_LAYOUTS):
        build = partial(_matmul, layout, runs)
        name = f"level0/MatMul[{layout}, {runs} runs]"
        yield Case(name, 0, f"MatMul[{layout}]", "MatMul", build)
    for op in STACKS:
        for layout in STACK_LAYOUTS:
            build = partial(_stack, op, layout, runs)
            yield Case(f"level0/{op}[{layout}, {runs} runs]", 0, f"{op}[{layout}]", op, build)


def _several(probe: ProbeProgram, source: CaseData, counts: tuple[int, ...] = ROWS) -> Scenario:
    """Return sequences of so many rows."""
    feeds = [probe.feed(source, count, 100.0) for count in counts]
    return Scenario(probe.program, probe.weights, feeds)


def _matmul(layout: str, runs: int, source: CaseData) -> Scenario:
    weight = uneven(source, layout, OUTPUTS, _columns(layout, runs))
    return _several(matrices.matmul(weight), source)


def _stack(op: str, layout: str, runs: int, source: CaseData) -> Scenario:
    probe = STACKS[op](source, layout, _columns(layout, runs))
    return _several(probe, source, (1, 20))


def _sums(runs: int) -> Mapping[tuple[str, str], Callable[[CaseData], Scenario]]:
    """Return the operators that take a canonical sum, each over so many terms."""
    count = TERMS[runs]
    delta, space = ops.DeltaRule(1, count, 3), ops.StateSpace(1, 3, count)
    return {
        ("RMSNorm", f"width {count}"): lambda s: elementwise.rms_norm(s, count).scenario(s, 24),
        ("LayerNorm", f"width {count}, most lanes zero"): partial(_layer_norm, count, True),
        ("LayerNorm", f"width {count}, most lanes zero, without a weight"): partial(
            _layer_norm, count, False
        ),
        ("L2Norm", f"width {count}"): partial(scaling.normed, ops.L2Norm(count, 1e-6)),
        ("Softmax", f"width {count}"): partial(scaling.normed, ops.Softmax(count)),
        ("Route", f"{count} experts"): partial(_many_experts, count),
        ("Top", f"{count} logits"): partial(_logits, count),
        ("DeltaRule", f"keys of {count}"): lambda s: recurrences.delta_rule(delta).scenario(s, 24),
        ("DiagonalDeltaRule", f"keys of {count}"): lambda s: recurrences.diagonal_delta_rule(
            ops.DiagonalDeltaRule(1, count, 3)
        ).scenario(s, 24),
        ("StateSpace", f"a state of {count}"): lambda s: recurrences.state_space(space).scenario(
            s, 24
        ),
    }


def _layer_norm(count: int, weighted: bool, source: CaseData) -> Scenario:
    """Return rows of LayerNorm with zeros, at which the result shows the mean."""
    plain = elementwise.plain_layer_norm
    probe = elementwise.layer_norm(source, count, False) if weighted else plain(count)
    return probe.given(x=in_few_lanes(source.floats(24, count, amplitude=2), count))


def _many_experts(count: int, source: CaseData) -> Scenario:
    probe = matrices.route(source, Router(3), False, experts=count)
    return replace(probe.given(x=_below_zero(count, source)), wants=(Named("y.0"), Named("y.1")))


def _below_zero(count: int, source: CaseData) -> Floats:
    """Return rows whose largest value is 0 and whose exponentials sum to 1 to 3."""
    x = in_few_lanes(np.abs(source.floats(24, count)) * F32(-1.5) - F32(1), count, -60.0)
    x[np.arange(24), source.integers(0, count, 24)] = 0
    return x


def _logits(count: int, source: CaseData) -> Scenario:
    return of_logits(_below_zero(count, source), (Top(5),), source)


def _experts(chosen: int) -> Mapping[tuple[str, str], Callable[[CaseData], Scenario]]:
    """Return the cases summed expert by expert, for so many of them and for twice as many."""
    return {
        (op, f"{what}, {count} experts"): partial(make, count)
        for count in (chosen, 2 * chosen)
        for (op, what), make in {
            ("CombineExperts", "chosen"): _combined,
            ("Route", "renormalised, chosen"): _renormalised,
            ("Route", "softmax of the chosen"): _of_the_chosen,
        }.items()
    }


def _combined(count: int, source: CaseData) -> Scenario:
    return matrices.combine(source, count).scenario(source, 8)


def _routed(router: Router, amplitude: float, source: CaseData) -> Scenario:
    probe = matrices.route(source, router, False)
    return replace(probe.scenario(source, 40, amplitude), wants=(Named("y.0"), Named("y.1")))


def _renormalised(count: int, source: CaseData) -> Scenario:
    return _routed(Router(count, "sigmoid", renormalise=True), 3.0, source)


def _of_the_chosen(count: int, source: CaseData) -> Scenario:
    return _routed(Router(count, "softmax_topk"), 3.0, source)


def _everything(chosen: int, source: CaseData) -> Scenario:
    """Return scores whose prefix holds all weight: one expert's, but for some 2^-25 of each other.

    Which of them are left out is decided by how their weights round when they are added.
    """
    probe = matrices.route(source, Router(chosen, tau=1.0), False)
    x = np.abs(source.floats(40, 32)) - F32(19.3)
    x[np.arange(40), source.integers(0, 32, 40)] = 0
    return replace(probe.given(x=x), wants=(Named("y.0"), Named("y.1")))
