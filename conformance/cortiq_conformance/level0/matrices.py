"""Look-up and products: every layout, typical and extreme codes, experts and heads, routing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.backend import Named
from cortiq.ir import Type, ops
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.route import Router
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_weights import MATRIX_LAYOUTS, extreme, typical
from cortiq_conformance.drives import SequenceInput
from cortiq_conformance.probes import TOKEN, ProbeProgram, floats, one, vector

EXPERTS, TOP = 6, 3


def cases() -> Iterator[Case]:
    """Yield matrix cases of level 0."""
    for layout in MATRIX_LAYOUTS:
        for what, build in MATMULS.items():
            yield _case("MatMul", layout, what, partial(build, layout))
        yield _case("EmbedRows", layout, "typical and extreme rows", partial(_embed, layout))
    for layout in ("w8", "Q4_K", "Q4_1", "f32"):
        yield _case("HeadMatMul", layout, "3 heads", partial(_heads, layout))
        for shared in (True, False):
            what = "one row for all experts" if shared else "a row an expert"
            yield _case("ExpertMatMul", layout, what, partial(_experts, layout, shared))
    for what, router in ROUTERS.items():
        for biased in (False, True):
            name = f"{what}{', selection bias' if biased else ''}"
            build = partial(_route, router, biased)
            yield Case(f"level0/Route[{name}]", 0, "Route", "Route", build)
    for what, router in MIXERS.items():
        for masked in (False, True):
            name = f"{what}{', masked' if masked else ''}"
            build = partial(_route, router, False, masked=masked)
            yield Case(f"level0/Route[{name}]", 0, "Route", "Route", build)
    for what, router in LIMITED.items():
        for masked in (False, True):
            name = f"{what}{', masked' if masked else ''}"
            build = partial(_route, router, router.kind == "sigmoid", masked=masked)
            yield Case(f"level0/Route[{name}]", 0, "Route", "Route", build)
    build = partial(_route, Router(4, "sparse_mixer", margin=0.5), False, ties=True)
    yield Case("level0/Route ties[sparse mixer]", 0, "Route ties", "Route", build)
    build = partial(_route, Router(TOP), False, ties=True)
    yield Case("level0/Route ties[equal scores]", 0, "Route ties", "Route", build)
    build = partial(_route, LIMITED["groups by their best"], False, ties=True)
    yield Case("level0/Route ties[equal groups]", 0, "Route ties", "Route", build)
    yield _case("EmbedRows", "w8", "ids past the table", _missing)
    for layout in ("f32", "w16", "Q4_K"):
        build = partial(_by_position, layout)
        yield _case("EmbedRows", layout, "rows by position", build)
        build = partial(_by_number, layout)
        yield _case("EmbedRows", layout, "rows by a number that the row supplies", build)
    for every in (False, True):
        what = "all six matrices of a stack" if every else "three of six matrices of a stack"
        yield Case(f"level0/StackIndex[{what}]", 0, "StackIndex", "StackIndex",
                   partial(_places, every))  # fmt: skip
    yield Case("level0/CombineExperts[3 of 6 experts]", 0, "CombineExperts", "CombineExperts",
               _combine)  # fmt: skip


def _case(op: str, layout: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    return Case(f"level0/{op}[{layout}, {what}]", 0, f"{op}[{layout}]", op, build)


def matmul(weight: Weight) -> ProbeProgram:
    """Build a probe of x times a weight."""
    rows, columns = weight.shape
    quantised = () if weight.layout.kind == "float" else ("x",)
    weights = {"weight": weight}
    return one(ops.MatMul(columns, rows), {"x": floats(columns)}, weights, quantised)


def _columns(layout: str, least: int) -> int:
    block = LAYOUTS[layout].block or 1
    return -(-least // block) * block


def _typical(layout: str, source: CaseData) -> Scenario:
    weight = typical(source, layout, 70, _columns(layout, 512))
    return matmul(weight).scenario(source, 67)


def _extreme(layout: str, source: CaseData) -> Scenario:
    weight = extreme(source, layout, _columns(layout, 512))
    probe = matmul(weight)
    x = source.floats(5, weight.shape[1])
    x[1] = np.where(source.integers(0, 2, weight.shape[1]), F32(1), F32(-1))
    x[2] = 1
    x[3] = 0
    return probe.given(x=x)


def _odd_blocks(layout: str, source: CaseData) -> Scenario:
    """Return a number of blocks that fills no run, and a width that fills no tile."""
    block = LAYOUTS[layout].block or 37
    weight = typical(source, layout, 19, block * 11)
    return matmul(weight).scenario(source, 3, amplitude=100.0)


def _many(layout: str, source: CaseData) -> Scenario:
    """Return more rows than any kernel takes for few: of two runs where they can be told apart."""
    block = LAYOUTS[layout].block
    weight = typical(source, layout, 150, block * 11 if block else 768)
    return matmul(weight).scenario(source, 131, amplitude=100.0)


MATMULS: dict[str, Callable[[str, CaseData], Scenario]] = {
    "67 rows of typical codes": _typical,
    "extreme codes and scales": _extreme,
    "11 blocks": _odd_blocks,
    "131 rows": _many,
}


def embed(weight: Weight) -> ProbeProgram:
    """Build a probe of a table's rows."""
    op = ops.EmbedRows(*weight.shape)
    return one(op, {"token": TOKEN}, {"table": weight}, limits={"token": weight.shape[0]})


def _embed(layout: str, source: CaseData) -> Scenario:
    weight = extreme(source, layout, _columns(layout, 256))
    probe = embed(weight)
    tokens = source.permutation(weight.shape[0]).astype(np.int32)
    return Scenario(probe.program, weight_map(probe), [SequenceInput(tokens)])


def _by_position(layout: str, source: CaseData) -> Scenario:
    """Return rows of a table of positions: learned position embeddings."""
    weight = typical(source, layout, 80, _columns(layout, 64))
    probe = one(ops.EmbedRows(*weight.shape), {"position": TOKEN}, {"table": weight})
    return probe.scenario(source, 70)


def _by_number(layout: str, source: CaseData) -> Scenario:
    """Return rows of a table of numbers that rows supply: kinds of tokens, shifted positions."""
    weight = typical(source, layout, 80, _columns(layout, 64))
    inputs = {"kind": Type((), "i32")}
    op = ops.EmbedRows(*weight.shape)
    return one(op, inputs, {"table": weight}, limits={"kind": 80}).scenario(source, 70)


def _missing(source: CaseData) -> Scenario:
    """Return ids of which every other one is past the table and gives zeros."""
    weight = typical(source, "w8", 20, 64)
    op = ops.EmbedRows(*weight.shape, missing=True)
    probe = one(op, {"token": TOKEN}, {"table": weight}, limits={"token": 40})
    tokens = source.permutation(40).astype(np.int32)
    return Scenario(probe.program, weight_map(probe), [SequenceInput(tokens)])


def weight_map(probe: ProbeProgram) -> dict[str, Weight]:
    """Return the weights of a probe."""
    return dict(probe.weights)


def head_matmul(source: CaseData, layout: str, least: int = 64, height: int = 20) -> ProbeProgram:
    """Build a probe of three heads with their own matrices of at least so many columns."""
    columns = _columns(layout, least)
    op, weight = ops.HeadMatMul(3, columns, height), typical(source, layout, 3 * height, columns)
    quantised = () if layout == "f32" else ("x",)
    return one(op, {"x": floats(3, columns)}, {"weight": weight}, quantised)


def _heads(layout: str, source: CaseData) -> Scenario:
    return head_matmul(source, layout).scenario(source, 5)


def expert_matmul(
    source: CaseData, layout: str, shared: bool, least: int = 64, height: int = 24
) -> ProbeProgram:
    """Build a probe of three of six experts a row, of at least so many columns."""
    columns = _columns(layout, least)
    op = ops.ExpertMatMul(EXPERTS, columns, height)
    weight = typical(source, layout, EXPERTS * height, columns)
    kind = floats(columns) if shared else floats(TOP, columns)
    inputs = {"x": kind, "index": Type((TOP,), "i32")}
    quantised = () if layout == "f32" else ("x",)
    return one(op, inputs, {"weight": weight}, quantised, limits={"index": EXPERTS})


def _experts(layout: str, shared: bool, source: CaseData) -> Scenario:
    return expert_matmul(source, layout, shared).scenario(source, 7)


def stack_index(every: bool = False) -> ProbeProgram:
    """Build a probe of places in one of nine stacks of six matrices."""
    inputs = {"number": Type((), "i32")}
    if not every:
        inputs["index"] = Type((TOP,), "i32")
    limits = {"number": 9, "index": EXPERTS}
    return one(ops.StackIndex(EXPERTS, every), inputs, limits=limits)


def _places(every: bool, source: CaseData) -> Scenario:
    return stack_index(every).scenario(source, 20)


ROUTERS = {
    "softmax": Router(TOP),
    "softmax, renormalised": Router(TOP, renormalise=True),
    "sigmoid, renormalised with a floor, scaled": Router(
        TOP, "sigmoid", renormalise=True, denominator_floor=1e-6, routed_scaling=2.5
    ),
    "softmax of the chosen": Router(TOP, "softmax_topk"),
    "root of softplus, renormalised": Router(TOP, "sqrt_softplus", renormalise=True),
}


LIMITED = {
    "groups by their best": Router(TOP, groups=8, kept_groups=3),
    "groups by their two best, renormalised": Router(
        TOP, "sigmoid", True, 1e-20, 2.5, groups=4, kept_groups=2, group_score="top2"
    ),
    "the prefix that holds 0.7": Router(5, renormalise=True, tau=0.7),
    "groups, and the prefix that holds 0.9 of the chosen": Router(
        6, "softmax_topk", groups=4, kept_groups=2, tau=0.9
    ),
}
"""Routers that admit some experts only, or keep some of the chosen only."""


MIXERS = {
    "sparse mixer": Router(2, "sparse_mixer", margin=0.02),
    "sparse mixer of wide margins, renormalised, scaled": Router(
        TOP, "sparse_mixer", renormalise=True, routed_scaling=2.5, margin=1.3
    ),
    "sparse mixer of three groups": Router(2, "sparse_mixer", groups=8, kept_groups=3, margin=0.4),
}


def route(
    source: CaseData, router: Router, biased: bool, masked: bool = False, experts: int = 32
) -> ProbeProgram:
    """Build a probe of scores to indices and weights."""
    op = ops.Route(experts, router, biased, masked)
    weights = {"bias": vector(source.floats(experts, amplitude=0.1))} if biased else {}
    if masked:
        weights["mask"] = vector((source.integers(0, 3, experts) == 0).astype(F32))
    return one(op, {"x": floats(experts)}, weights)


def _route(
    router: Router, biased: bool, source: CaseData, ties: bool = False, masked: bool = False
) -> Scenario:
    """Return a case that compares indices through the weights and directly."""
    probe = route(source, router, biased, masked)
    x = source.floats(40, 32, amplitude=3)
    if ties:
        x = source.integers(-2, 3, 40, 32).astype(F32)
    return replace(probe.given(x=x), wants=(Named("y.0"), Named("y.1")))


def combine(source: CaseData, count: int = TOP) -> ProbeProgram:
    """Build a probe of weights and outputs to their sum."""
    return one(ops.CombineExperts(), {"weight": floats(count), "output": floats(count, 48)})


def _combine(source: CaseData) -> Scenario:
    return combine(source).scenario(source, 24)
