"""Gains, gates, constants and bounds, normalised rows, and what belongs to an expert."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from cortiq.ir import Type, ops
from cortiq.numerics import scaling
from cortiq.numerics.contract import F32, Flags
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData, edges
from cortiq_conformance.level0.foundations import in_rows
from cortiq_conformance.probes import ProbeProgram, floats, one, vector

WIDTH = 256
EXPERTS, TOP = 6, 3
NORM_WIDTHS = (1, 3, 64, 128, 256, 257, 640)


def cases() -> Iterator[Case]:
    """Yield scaling cases of level 0."""
    for per, probe in GAINS.items():
        yield _case("Gain", f"per {per}", partial(_random, probe))
    for form in ("exp", "negative_exp", "softplus"):
        yield _case("Gain", f"form {form}", partial(_formed, form))
    for form in ("square", "magnitude"):
        yield _case("Gain", f"form {form}", partial(_signed, form))
    yield _case("ScaleRows", "a number a head", partial(_random, scale_rows))
    for amount in (1.0, -0.3, 2.0**-30):
        yield _case("Shift", f"by {amount:g}", partial(_shift, amount))
    for what, op in CLAMPS.items():
        yield _case("Clamp", what, partial(_clamp, op))
    for width in NORM_WIDTHS:
        yield _case("L2Norm", f"width {width}", partial(normed, ops.L2Norm(width, 1e-6)))
        if width > 1:
            yield _case("Softmax", f"width {width}", partial(normed, ops.Softmax(width)))
    for what, probe in EXPERT_PROBES.items():
        yield _case(what.partition(",")[0], what, partial(_random, probe))
    for what, probe in SELECTED.items():
        yield _case("IndexSelect", what, partial(_random, probe))


def _case(family: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, family, build)


def _random(make: Callable[[CaseData], ProbeProgram], source: CaseData) -> Scenario:
    return make(source).scenario(source, 24, amplitude=3.0)


def gain(source: CaseData, width: int, per: str, shape: tuple[int, ...]) -> ProbeProgram:
    """Build a probe of values times gains around 1."""
    weights = {"weight": vector(F32(1) + source.floats(width) * F32(0.5))}
    return one(ops.Gain(width, per), {"x": floats(*shape)}, weights)


GAINS: dict[str, Callable[[CaseData], ProbeProgram]] = {
    "value": lambda s: gain(s, 65, "value", (3, 65)),
    "head": lambda s: gain(s, 5, "head", (5, 48)),
    "all": lambda s: gain(s, 1, "all", (70,)),
}


def _formed(form: str, source: CaseData) -> Scenario:
    """Return gains that the file holds as logarithms, from e^-9 to e^5."""
    logarithms = source.floats(64, amplitude=2) * F32(1.75) - F32(2)
    weights = {"weight": vector(logarithms)}
    return one(ops.Gain(64, "head", form), {"x": floats(64, 4)}, weights).scenario(source)


def _signed(form: str, source: CaseData) -> Scenario:
    """Return gains of both signs, among them some whose square is too small to be kept."""
    values = np.concatenate([source.floats(96, amplitude=3), source.spread(160, low=-39, high=20)])
    probe = one(ops.Gain(256, form=form), {"x": floats(256)}, {"weight": vector(values)})
    return probe.scenario(source)


def scale_rows(source: CaseData) -> ProbeProgram:
    """Build a probe of four heads, each times a number of its own."""
    return one(ops.ScaleRows(), {"x": floats(4, 40), "factor": floats(4, 1)})


def _shift(amount: float, source: CaseData) -> Scenario:
    values = np.concatenate([edges(), source.spread(4096), source.floats(2048)])
    faults: Flags = np.zeros(len(values), np.bool_)
    scaling.shift(values[:, None], amount, faults)
    return one(ops.Shift(amount), {"x": floats(WIDTH)}).given(x=in_rows(values[~faults]))


CLAMPS = {
    "from -7 to 7": ops.Clamp(-7.0, 7.0),
    "at most 7": ops.Clamp(None, 7.0),
    "at least 0": ops.Clamp(0.0),
}


def _clamp(op: ops.Clamp, source: CaseData) -> Scenario:
    """Return values on both sides of the bounds, on them, and next to them."""
    bounds = np.array([b for b in (op.low, op.high) if b], F32)
    near = (bounds.view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)).view(F32).ravel()
    values = np.concatenate([near, edges(), source.spread(4096)])
    return one(op, {"x": floats(WIDTH)}).given(x=in_rows(values))


def normed(op: ops.L2Norm | ops.Softmax, source: CaseData) -> Scenario:
    """Return rows of small, plain and large values."""
    x = np.concatenate([source.floats(24, op.width, amplitude=a) for a in (0.01, 1.0, 40.0)])
    return one(op, {"x": floats(op.width)}).given(x=x)


def index_select(source: CaseData, width: int = 40, out: int = 70) -> ProbeProgram:
    """Build a probe of values at their places in a longer row, from which some are missing."""
    index = np.full(out, -1, F32)
    index[source.permutation(out)[:width]] = source.permutation(width)[:out]
    return one(ops.IndexSelect(width, out), {"x": floats(width)}, {"index": vector(index)})


def _strangers(source: CaseData) -> ProbeProgram:
    """Build a probe with indices that repeat, and others that are of no value."""
    index = vector(source.integers(-3, 20, 300).astype(F32))
    return one(ops.IndexSelect(17, 300), {"x": floats(17)}, {"index": index})


SELECTED: dict[str, Callable[[CaseData], ProbeProgram]] = {
    "40 of 70": index_select,
    "1300 of 2500": lambda s: index_select(s, 1300, 2500),
    "repetitions and strangers": _strangers,
}


def _index() -> Type:
    return Type((TOP,), "i32")


def expert_gain(source: CaseData, *width: int) -> ProbeProgram:
    """Build a probe of three of six experts, each times its gain."""
    inputs = {"x": floats(TOP, *width), "index": _index()}
    weights = {"weight": vector(F32(1) + source.floats(EXPERTS) * F32(0.5))}
    return one(ops.ExpertGain(EXPERTS), inputs, weights, limits={"index": EXPERTS})


def expert_bias(source: CaseData) -> ProbeProgram:
    """Build a probe of three of six experts, each plus its bias."""
    inputs = {"x": floats(TOP, 40), "index": _index()}
    weights = {"bias": vector(source.floats(EXPERTS, 40))}
    return one(ops.ExpertBias(EXPERTS, 40), inputs, weights, limits={"index": EXPERTS})


EXPERT_PROBES: dict[str, Callable[[CaseData], ProbeProgram]] = {
    "ExpertGain, of weights": expert_gain,
    "ExpertGain, of outputs": lambda s: expert_gain(s, 40),
    "ExpertBias, of outputs": expert_bias,
}
