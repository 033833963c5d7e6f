"""Every summation order of the contract, with two faults each: from the last, and in pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cortiq.backend import Top
from cortiq.ir import ops
from cortiq.numerics.layouts import LAYOUTS
from cortiq_conformance.case_weights import CODE_LAYOUTS
from cortiq_conformance.faults import compressed, products, sums
from cortiq_conformance.faults.fault import Fault
from cortiq_conformance.faults.folds import WAYS, Fold
from cortiq_conformance.faults.kernels import Wrong
from cortiq_conformance.level0.runs import STACK_LAYOUTS

Answers = dict[type, Callable[[Any, Any, int], Any]]


@dataclass(frozen=True)
class OrderedTerms:
    """Terms that are added in a written order.

    Attributes
    ----------
    order : name in `cortiq_conformance.summation_orders`.
    fault : the cases that find another order.
    kernels, answers : wrong ones, for another order.
    more : families that find one of the wrong orders only, by `WAYS`.
    """

    order: str
    fault: Fault
    kernels: Callable[[Fold], Wrong] = lambda fold: {}
    answers: Callable[[Fold], Answers] = lambda fold: {}
    more: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def faults(self) -> dict[str, Fault]:
        """Return a fault for each wrong order."""
        return {
            way: replace(
                self.fault,
                families=self.fault.families + self.more.get(way, ()),
                order=self.order,
                fewest=wrong.fewest,
            )
            for way, wrong in WAYS.items()
        }


def _families(op: str, layouts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the families of products whose rows have several blocks."""
    return tuple(f"{op}[{name}]" for name in layouts if LAYOUTS[name].block)


def _summed(kind: type, op: str, family: str = "") -> OrderedTerms:
    """Return the fault of an operator's canonical sum."""
    fault = Fault((family or op,), op)
    return OrderedTerms(
        "lanes of a sum", fault, lambda fold: {kind: sums.summed(kind, sums.lanes(fold))}
    )


def _product(order: str, kind: type, op: str, layouts: tuple[str, ...]) -> OrderedTerms:
    part = "blocks" if order == "blocks of a run" else "runs"
    fault = Fault(_families(op, layouts), op)
    return OrderedTerms(order, fault, lambda fold: {kind: products.product(kind, **{part: fold})})


def _by_blocks(order: str, what: str) -> Iterator[tuple[str, OrderedTerms]]:
    yield f"{what} of a product", _product(order, ops.MatMul, "MatMul", CODE_LAYOUTS)
    yield f"{what} of heads", _product(order, ops.HeadMatMul, "HeadMatMul", STACK_LAYOUTS)
    yield f"{what} of experts", _product(order, ops.ExpertMatMul, "ExpertMatMul", STACK_LAYOUTS)


ATTEND = (
    "Attend", "Attend window", "Attend sinks", "Attend soft cap", "Attend slopes", "Attend block",
    "Attend span", "Attend blocks", "Attend keys",
)  # fmt: skip
"""Families of attention past a run of tiles."""
PRODUCTS = _families("MatMul", CODE_LAYOUTS)
"""Families of products that add blocks."""
FOUNDATION = 0
"""Stage of what everything else stands on."""

ORDERED: Mapping[str, OrderedTerms] = {
    "lanes of every sum": OrderedTerms(
        "lanes of a sum", Fault(("canonical_sum",), "RMSNorm", FOUNDATION),
        lambda fold: sums.all_summed(sums.lanes(fold)),
    ),
    "lanes of LayerNorm": _summed(ops.LayerNorm, "LayerNorm"),
    "lanes of L2Norm": _summed(ops.L2Norm, "L2Norm"),
    "lanes of Softmax": _summed(ops.Softmax, "Softmax"),
    "lanes of a router": _summed(ops.Route, "Route"),
    "lanes of a float product": _summed(ops.MatMul, "MatMul", "MatMul[f32]"),
    "lanes of a delta rule": _summed(ops.DeltaRule, "DeltaRule"),
    "lanes of a diagonal delta rule": _summed(ops.DiagonalDeltaRule, "DiagonalDeltaRule"),
    "lanes of a state space": _summed(ops.StateSpace, "StateSpace"),
    "lanes of a log-sum-exp": OrderedTerms(
        "lanes of a sum", Fault(("Top",), "Top"),
        answers=lambda fold: {Top: sums.top_summed(sums.lanes(fold))},
        more={"added from the last": ("Top ties",)},
    ),
    **dict(_by_blocks("blocks of a run", "blocks")),
    **dict(_by_blocks("runs of blocks", "runs")),
    "tiles of a run": OrderedTerms(
        "tiles of a run", Fault((*ATTEND, "Attend listed"), "Attend"),
        lambda fold: {ops.Attend: products.attend(tiles=fold)},
    ),
    "runs of tiles": OrderedTerms(
        "runs of tiles", Fault(ATTEND, "Attend"),
        lambda fold: {ops.Attend: products.attend(runs=fold)},
    ),
    "taps": OrderedTerms(
        "taps", Fault(("CausalConv",), "CausalConv"),
        lambda fold: {ops.CausalConv: sums.conv(fold)},
    ),
    "experts": OrderedTerms(
        "outputs of experts", Fault(("CombineExperts",), "CombineExperts"),
        lambda fold: {ops.CombineExperts: sums.combined(fold)},
    ),
    "weights of experts": OrderedTerms(
        "weights of experts", Fault(("Route",), "Route"),
        lambda fold: {ops.Route: sums.renormalised(fold)},
    ),
    "weights of a prefix": OrderedTerms(
        "weights of a prefix", Fault(("Route",), "Route"),
        lambda fold: {ops.Route: sums.trimmed(fold)},
    ),
    "rows of an entry": OrderedTerms(
        "rows of an entry", Fault(("Compress",), "Compress"),
        lambda fold: {ops.Compress: compressed.entries(fold)},
    ),
    "lines of a matrix": OrderedTerms(
        "lines of a matrix", Fault(("Sinkhorn",), "Sinkhorn"),
        lambda fold: {ops.Sinkhorn: compressed.matrices(fold)},
    ),
}  # fmt: skip
"""By what is added."""


def faults() -> dict[str, Fault]:
    """Return the faults, by name."""
    return {
        f"{what} {way}": fault
        for what, one in ORDERED.items()
        for way, fault in one.faults().items()
    }


WRONG_ORDERS: dict[str, Wrong] = {
    f"{what} {way}": one.kernels(wrong.fold)
    for what, one in ORDERED.items()
    for way, wrong in WAYS.items()
}
"""Wrong kernels by fault."""
ANSWERS_IN_WRONG_ORDER: dict[str, Answers] = {
    f"{what} {way}": one.answers(wrong.fold)
    for what, one in ORDERED.items()
    for way, wrong in WAYS.items()
}
"""Wrong answers by fault."""
