"""Sparse attention: the keys that queries choose one by one, and attention to these only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.backend import Named
from cortiq.ir import ops
from cortiq.numerics.contract import F32, Floats
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.level0.blocks import CHOSEN, DIM, ROWS, block_attention
from cortiq_conformance.probes import OUTPUT, ProbeProgram

TWENTY = ops.ChooseKeys(4, DIM, 20)
CHOICES: Mapping[str, ops.ChooseKeys] = {
    "20 by 4 heads": TWENTY,
    "3 by 3 heads": ops.ChooseKeys(3, DIM, 3),
    "1 by 1 head": ops.ChooseKeys(1, DIM, 1),
    "70 by 37 heads": ops.ChooseKeys(37, DIM, 70),
    "more than there are": ops.ChooseKeys(2, DIM, ROWS + 7),
}
WINDOW = 40
Changed = Callable[[CaseData, Mapping[str, Floats]], Mapping[str, Floats]]
"""Other rows than random ones, by name."""
Term = tuple[int, float]
"""The element of the keys that a head looks at, and its weight."""
SCALES = (2.0**-36, 2.0**-5, 2.0**26)
"""Of weights: a term of one is lost beside one of the next."""


def cases() -> Iterator[Case]:
    """Yield key cases of level 0."""
    for what, op in CHOICES.items():
        yield _case("ChooseKeys", what, partial(_typical, op, None, CHOSEN))
        yield _case("Attend keys", what, partial(_typical, op, None, OUTPUT))
    for what, (op, changed) in ROWS_OF.items():
        yield _case("ChooseKeys", what, partial(_changed, op, changed))
    what = f"20 by 4 heads, in a window of {WINDOW}"
    yield _case("Attend keys", what, partial(_typical, TWENTY, WINDOW, OUTPUT))


def _case(family: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    op = family.partition(" ")[0]
    return Case(f"level0/{family}[{what}]", 0, family, op, build)


def _typical(op: ops.ChooseKeys, window: int | None, wanted: str, source: CaseData) -> Scenario:
    probe = block_attention(op, window=window)
    return replace(probe.scenario(source, ROWS, 2.0), wants=(Named(wanted),))


def _changed(op: ops.ChooseKeys, changed: Changed, source: CaseData) -> Scenario:
    scenario = block_attention(op).scenario(source, ROWS)
    (feed,) = scenario.feeds
    inputs = {**feed.inputs, **changed(source, feed.inputs)}
    return replace(scenario, feeds=[replace(feed, inputs=inputs)], wants=(Named(CHOSEN),))


def _small(source: CaseData, rows: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """Return integers for which many keys share a score, zero among them."""
    names = ("index_q", "index_k", "index_w")
    return {n: source.integers(-1, 2, *rows[n].shape).astype(F32) for n in names}


def _cancelling(source: CaseData, rows: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """Return weights up to 2^30 of either sign, whose sum depends on the order of the heads."""
    weights = rows["index_w"]
    large = source.integers(-2, 3, *weights.shape) * F32(2.0**30)
    return {"index_w": np.where(large == 0, weights, large.astype(F32))}


def _parts_cancel(source: CaseData, rows: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """Return rows whose partial sums over heads cancel in the contract's order alone.

    Every head looks at one element of the keys, which are small integers, so that terms are exact.
    """
    count, heads = rows["index_w"].shape
    query, weights = np.zeros(rows["index_q"].shape, F32), np.zeros((count, heads), F32)
    for row in range(count):
        terms = _terms(source, heads)
        query[row, np.arange(heads), [element for element, _ in terms]] = 1
        weights[row] = [weight for _, weight in terms]
    keys = source.integers(0, 63, *rows["index_k"].shape).astype(F32)
    return {"index_q": query, "index_w": weights, "index_k": keys}


def _terms(source: CaseData, heads: int) -> list[Term]:
    """Return each head's element and weight, from the root of the tree of a canonical sum down.

    A node that is to be a term is that and a node that is to be 0, in either order; one that is to
    be 0 is a term and its negative, of the next larger scale. Added in another order, small terms
    meet large ones before these have cancelled, and are lost.
    """
    found: list[Term] = [(0, 0.0)] * heads
    nodes: list[tuple[int, int, int, Term | None]] = [(0, 1, 0, _term(source, 0))]
    while nodes:
        at, half, scale, term = nodes.pop()
        below = 2 * half, min(scale + 1, len(SCALES) - 1)
        if half >= heads:
            found[at] = term or found[at]
        elif at + half >= heads:
            nodes.append((at, *below, term))
        else:
            first, second = term, None
            if term is None:
                first = element, weight = _term(source, scale)
                second = element, -weight
            elif source.integers(0, 2, 1)[0]:
                first, second = None, term
            nodes += [(at, *below, first), (at + half, *below, second)]
    return found


def _term(source: CaseData, scale: int) -> Term:
    """Return an element of the keys and a weight of this scale."""
    element, factor = source.integers(0, DIM, 1), source.integers(1, 4, 1)
    return int(element[0]), float(factor[0]) * SCALES[scale]


def _extreme(source: CaseData, rows: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """Return queries, keys and weights of all sizes: products beyond the domain on both sides."""
    names = ("index_q", "index_k", "index_w")
    return {n: source.spread(*rows[n].shape, low=-40, high=49) for n in names}


ROWS_OF: Mapping[str, tuple[ops.ChooseKeys, Changed]] = {
    "equal scores": (ops.ChooseKeys(4, DIM, 20), _small),
    "equal scores, one head": (ops.ChooseKeys(1, DIM, 5), _small),
    "weights that cancel, 3 heads": (ops.ChooseKeys(3, DIM, 9), _cancelling),
    "weights that cancel, 7 heads": (ops.ChooseKeys(7, DIM, 9), _cancelling),
    "weights that cancel, 256 heads": (ops.ChooseKeys(256, DIM, 9), _cancelling),
    **{
        f"partial sums that cancel, {n} heads": (ops.ChooseKeys(n, DIM, 9), _parts_cancel)
        for n in (3, 7, 256)
    },
    "all sizes": (ops.ChooseKeys(3, DIM, 30), _extreme),
}


def sparse(source: CaseData) -> ProbeProgram:
    """Return the small program of the state cases."""
    return block_attention(TWENTY)


def choosing(source: CaseData) -> ProbeProgram:
    """Return `sparse` with its keys as the output."""
    probe = sparse(source)
    graph = replace(probe.program.trunk, outputs=(CHOSEN,))
    return replace(probe, program=replace(probe.program, graphs={"trunk": graph}))
