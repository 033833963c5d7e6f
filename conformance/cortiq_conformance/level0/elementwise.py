"""Elementwise primitives, norms and shape changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from cortiq.ir import ops
from cortiq.numerics import scalar
from cortiq.numerics.column_order import ColumnOrder
from cortiq.numerics.contract import F32, Flags, Floats
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData, edges, ladder
from cortiq_conformance.level0.foundations import in_rows
from cortiq_conformance.probes import ProbeProgram, floats, one, vector

WIDTH = 256
NORM_WIDTHS = (1, 3, 64, 255, 256, 257, 576, 640, 2048)
EPS = 1e-6


def cases() -> Iterator[Case]:
    """Yield elementwise cases of level 0."""
    for op in (ops.Add(), ops.Multiply()):
        for what, pairs in PAIRS.items():
            yield _case(op.kind, what, partial(_binary, op, pairs))
    for factor in (0.1, -3.0, 25.298221281347036, 2.0**-30):
        yield _case("Scale", f"factor {factor:g}", partial(_scale, factor))
    yield _case("Bias", f"width {WIDTH}", _bias)
    for width in NORM_WIDTHS:
        yield _case("RMSNorm", f"width {width}", partial(_rms, width, {}))
    yield _case("RMSNorm", "width 576, without a weight", partial(_rms, 576, {"weighted": False}))
    yield _case("RMSNorm", "width 640, offset 1", partial(_rms, 640, {"offset": 1.0}))
    yield _case("RMSNorm", "4 heads of 64", _rms_heads)
    yield _case("RMSNorm", "width 576, a row of zeros and exponent ladders", _rms_extremes)
    for width in (3, 64, 255, 576):
        for biased in (False, True):
            what = f"width {width}{', biased' if biased else ''}"
            yield _case("LayerNorm", what, partial(_layer_norm, width, biased))
    for width in (3, 576):
        yield _case("LayerNorm", f"{width}, without a weight", partial(_plain_layer_norm, width))
    for kind, build in SHAPES.items():
        yield _case(kind, "as they are", build)
    yield _case("Slice", "every other value", _every_other)
    for width in (1, 40, 640):
        yield _case("Permute", f"3 parts of {width}", partial(_permute, width))


def _case(family: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, family, build)


def _edge_pairs(source: CaseData) -> tuple[Floats, Floats]:
    values = edges()
    return np.repeat(values, len(values)), np.tile(values, len(values))


def _cancelling(source: CaseData) -> tuple[Floats, Floats]:
    """Return neighbours and halfway cases: b is −a moved by a few ulps, or about 2⁻²⁴ of a."""
    a = source.spread(4096, low=-30, high=40)
    near = (a.view(np.int32) + source.integers(-3, 4, a.size)).view(F32)
    tiny = a * F32(2.0**-24) * source.integers(1, 6, a.size).astype(F32)
    return np.concatenate([a, a, a]), np.concatenate([-near, tiny, -tiny])


PAIRS: dict[str, Callable[[CaseData], tuple[Floats, Floats]]] = {
    "every pair of edge values": _edge_pairs,
    "exponents from -40 to 49": lambda s: (s.spread(8192), s.spread(8192)),
    "cancellation and halves of an ulp": _cancelling,
}


def _binary(op: ops.Add | ops.Multiply, pairs: Callable, source: CaseData) -> Scenario:
    a, b = pairs(source)
    faults: Flags = np.zeros(len(a), np.bool_)
    function = scalar.add if isinstance(op, ops.Add) else scalar.multiply
    function(a[:, None], b[:, None], faults)
    kept = ~faults
    return binary(op).given(a=in_rows(a[kept]), b=in_rows(b[kept]))


def binary(op: ops.Add | ops.Multiply, width: int = WIDTH) -> ProbeProgram:
    """Build a probe of a and b to y."""
    return one(op, {"a": floats(width), "b": floats(width)})


def _scale(factor: float, source: CaseData) -> Scenario:
    values = np.concatenate([edges(), source.spread(4096)])
    faults: Flags = np.zeros(len(values), np.bool_)
    scalar.scale(values[:, None], factor, faults)
    return one(ops.Scale(factor), {"x": floats(WIDTH)}).given(x=in_rows(values[~faults]))


def bias(source: CaseData) -> ProbeProgram:
    """Build a probe of x plus a bias."""
    weights = {"bias": vector(source.floats(WIDTH))}
    return one(ops.Bias(WIDTH), {"x": floats(WIDTH)}, weights)


def _bias(source: CaseData) -> Scenario:
    probe = bias(source)
    return probe.given(
        x=np.concatenate([source.floats(8, WIDTH), source.spread(8, WIDTH, high=49)])
    )


def rms_norm(source: CaseData, width: int, **options: object) -> ProbeProgram:
    """Build a probe of RMSNorm with random gains."""
    op = ops.RMSNorm(width, EPS, **options)  # type: ignore[arg-type]
    weights = {"weight": vector(F32(1) + source.floats(width) * F32(0.25))} if op.weighted else {}
    return one(op, {"x": floats(width)}, weights)


def _rms(width: int, options: dict, source: CaseData) -> Scenario:
    probe = rms_norm(source, width, **options)
    rows = [source.floats(24, width, amplitude=a) for a in (0.01, 1.0, 300.0)]
    return probe.given(x=np.concatenate(rows))


def _rms_heads(source: CaseData) -> Scenario:
    weights = {"weight": vector(source.floats(64))}
    return one(ops.RMSNorm(64, EPS), {"x": floats(4, 64)}, weights).scenario(source, 8)


def _rms_extremes(source: CaseData) -> Scenario:
    x = source.floats(4, 576)
    x[1] = 0
    x[2] = ladder(576) * F32(2.0**-18)
    x[3, 1:] = 0
    return rms_norm(source, 576).given(x=np.where(np.abs(x) < 2.0**-40, F32(0), x))


def layer_norm(source: CaseData, width: int, biased: bool) -> ProbeProgram:
    """Build a probe of LayerNorm with random gain and bias."""
    weights = {"weight": vector(F32(1) + source.floats(width) * F32(0.25))}
    if biased:
        weights["bias"] = vector(source.floats(width))
    return one(ops.LayerNorm(width, EPS, biased), {"x": floats(width)}, weights)


def _layer_norm(width: int, biased: bool, source: CaseData) -> Scenario:
    return _moved(layer_norm(source, width, biased), width, source)


def plain_layer_norm(width: int) -> ProbeProgram:
    """Build a probe of LayerNorm without a weight."""
    op = ops.LayerNorm(width, EPS, biased=False, weighted=False)
    return one(op, {"x": floats(width)}, {})


def _plain_layer_norm(width: int, source: CaseData) -> Scenario:
    return _moved(plain_layer_norm(width), width, source)


def _moved(probe: ProbeProgram, width: int, source: CaseData) -> Scenario:
    """Return rows of which some have a mean far from zero."""
    x = source.floats(24, width, amplitude=2)
    x[1:8] += F32(3)
    return probe.given(x=x)


def _concat(source: CaseData) -> Scenario:
    return one(ops.Concat(), {"a": floats(3, 16), "b": floats(3, 5)}).scenario(source)


def _every_other(source: CaseData) -> Scenario:
    return one(ops.Slice(1, 40, 2), {"x": floats(2, 40)}).scenario(source)


def permute(source: CaseData, width: int) -> ProbeProgram:
    """Return a probe of three parts in an order that is not its own inverse."""
    order = ColumnOrder.of(source.permutation(width))
    return one(ops.Permute(order), {"x": floats(3, width)})


def _permute(width: int, source: CaseData) -> Scenario:
    return permute(source, width).scenario(source)


SHAPES: dict[str, Callable[[CaseData], Scenario]] = {
    "Slice": lambda s: one(ops.Slice(3, 21), {"x": floats(2, 40)}).scenario(s),
    "Concat": _concat,
    "Reshape": lambda s: one(ops.Reshape((4, 24)), {"x": floats(96)}).scenario(s),
}
