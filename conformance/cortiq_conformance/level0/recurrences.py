"""Primitives whose state every position replaces: delta rules and the state-space step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.ir import Op, Type, ops
from cortiq.numerics.contract import F32
from cortiq.numerics.scalar import sigmoid
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput
from cortiq_conformance.probes import ProbeProgram, floats, one

ROWS = 40
NEAR_ONE = F32(4)
"""Offset of numbers that a sigmoid turns into decays."""


def cases() -> Iterator[Case]:
    """Yield recurrent cases of level 0."""
    for what, op in DELTA_RULES.items():
        for decay in ("a head", "a channel"):
            make = partial(delta_rule, op, decay == "a channel")
            yield _case("DeltaRule", f"{what}, a decay {decay}", partial(_typical, make))
    for what, rule in DIAGONAL_RULES.items():
        yield _case(
            "DiagonalDeltaRule", what, partial(_typical, partial(diagonal_delta_rule, rule))
        )
    for what, space in STATE_SPACES.items():
        yield _case("StateSpace", what, partial(_typical, partial(state_space, space)))
    for what, space in CHANNELS.items():
        make = partial(state_space, space, True)
        yield _case("StateSpace", f"{what}, a decay a row", partial(_typical, make))
    for what, probe in PROBES.items():
        name = f"exponents from -20 to 8, {what}"
        yield _case(what, name, partial(_spread, probe))
        yield _case(what, f"states that decay to nothing, {what}", partial(_forgotten, probe))


def _case(op: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    return Case(f"level0/{op}[{what}]", 0, op, op, build)


DELTA_RULES = {
    "2 heads of 16 by 8": ops.DeltaRule(2, 16, 8),
    "6 heads on 2 key heads": ops.DeltaRule(6, 8, 12, 2),
    "keys of 128": ops.DeltaRule(1, 128, 32),
    "keys of 5, values of 3": ops.DeltaRule(3, 5, 3),
    "keys of 300, more than the lanes of a sum": ops.DeltaRule(1, 300, 4),
}
DIAGONAL_RULES = {
    "3 heads of 16 by 16": ops.DiagonalDeltaRule(3, 16, 16),
    "a head of 64": ops.DiagonalDeltaRule(1, 64, 64),
    "keys of 128": ops.DiagonalDeltaRule(1, 128, 32),
    "keys of 5, values of 3": ops.DiagonalDeltaRule(3, 5, 3),
    "keys of 300, more than the lanes of a sum": ops.DiagonalDeltaRule(1, 300, 4),
}
STATE_SPACES = {
    "2 heads of 16, a state of 8": ops.StateSpace(2, 16, 8),
    "6 heads in 2 groups": ops.StateSpace(6, 8, 12, 2),
    "a state of 128": ops.StateSpace(2, 32, 128),
    "heads of 3, a state of 5": ops.StateSpace(3, 3, 5),
}


CHANNELS = {
    "40 heads of 1, a state of 16": ops.StateSpace(40, 1, 16),
    "3 heads of 5, a state of 3": ops.StateSpace(3, 5, 3),
    "2 heads of 32, a state of 128": ops.StateSpace(2, 32, 128),
}
"""Mamba-1 and other shapes, with a decay for every row of a head's state."""


class RecurrentProbe(ProbeProgram):
    """A probe with rows like those of models: unit keys, decays below 1, positive steps."""

    def feed(self, source: CaseData, rows: int, amplitude: float = 1.0) -> SequenceInput:
        """Return rows that keep a state alive."""
        feed = super().feed(source, rows, amplitude)
        inputs = dict(feed.inputs)
        for name in inputs.keys() & {"q", "k", "b", "c", "kappa"}:
            width = inputs[name].shape[-1]
            inputs[name] = inputs[name] * F32(2.0 ** -(width.bit_length() // 2))
        for name, shift in (("alpha", NEAR_ONE), ("beta", F32(0)), ("delta", F32(0))):
            if name in inputs:
                inputs[name] = sigmoid(inputs[name] + shift)
        return SequenceInput(feed.tokens, inputs)


def _probe(op: Op, inputs: Mapping[str, Type]) -> RecurrentProbe:
    plain = one(op, inputs)
    return RecurrentProbe(plain.program, plain.weights, plain.inputs, plain.limits)


def delta_rule(op: ops.DeltaRule, channels: bool = False) -> RecurrentProbe:
    """Build a delta rule whose rows supply everything."""
    keys, decay = floats(op.groups, op.key_dim), (op.heads, op.key_dim)
    return _probe(op, {
        "q": keys, "k": keys, "v": floats(op.heads, op.value_dim),
        "alpha": floats(*decay) if channels else floats(op.heads), "beta": floats(op.heads),
    })  # fmt: skip


def diagonal_delta_rule(op: ops.DiagonalDeltaRule) -> RecurrentProbe:
    """Build a delta rule with a removal key, whose rows supply everything."""
    keys = floats(op.heads, op.key_dim)
    return _probe(op, {
        "q": keys, "k": keys, "v": floats(op.heads, op.value_dim), "alpha": keys, "kappa": keys,
        "beta": keys,
    })  # fmt: skip


def state_space(op: ops.StateSpace, rows: bool = False) -> RecurrentProbe:
    """Build a state space whose rows supply everything, a decay a row of the state if asked for."""
    shared, numbers = floats(op.groups, op.state_dim), floats(op.heads)
    decay = floats(op.heads, op.state_dim) if rows else numbers
    return _probe(op, {
        "x": floats(op.heads, op.head_dim), "b": shared, "c": shared, "alpha": decay,
        "delta": numbers,
    })  # fmt: skip


PROBES: Mapping[str, Callable[[], RecurrentProbe]] = {
    "DeltaRule": lambda: delta_rule(ops.DeltaRule(4, 8, 6, 2)),
    "DiagonalDeltaRule": lambda: diagonal_delta_rule(ops.DiagonalDeltaRule(3, 8, 6)),
    "StateSpace": lambda: state_space(ops.StateSpace(4, 6, 8, 2)),
}
"""A small program of each kind."""


def _typical(make: Callable[[], RecurrentProbe], source: CaseData) -> Scenario:
    return make().scenario(source, ROWS)


def _changed(probe: RecurrentProbe, source: CaseData, **inputs: np.ndarray) -> Scenario:
    scenario = probe.scenario(source, ROWS)
    (feed,) = scenario.feeds
    return replace(scenario, feeds=[SequenceInput(feed.tokens, {**feed.inputs, **inputs})])


def _spread(make: Callable[[], RecurrentProbe], source: CaseData) -> Scenario:
    """Return the values of every size, whose products run through many exponents."""
    probe = make()
    spread = {
        name: source.spread(ROWS, *kind.shape, low=-20, high=8)
        for name, kind in probe.inputs.items()
        if name in ("q", "b", "c", "v", "x")
    }
    return _changed(probe, source, **spread)


def _forgotten(make: Callable[[], RecurrentProbe], source: CaseData) -> Scenario:
    """Return rows that write nothing from the third on and keep a hundredth each."""
    probe = make()
    quiet: dict[str, np.ndarray] = {}
    writing = {"beta", "delta"} | ({"k"} if "kappa" in probe.inputs else set())
    for name in probe.inputs.keys() & writing:
        quiet[name] = np.zeros((ROWS, *probe.inputs[name].shape), F32)
        quiet[name][:3] = 0.9
    quiet["alpha"] = np.full((ROWS, *probe.inputs["alpha"].shape), F32(0.01))
    return _changed(probe, source, **quiet)
