"""Primitives that one kernel computes together: sum, norm and quantised row in one pass, a
projection's heads on their way into attention, and so on.

A backend names the patterns that it has kernels for (`cortiq.backend.patterns`). What a batch asks
for by name stays a value of its own; whatever else a step swallows never exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.backend.lower import Lowered, LoweredStep
from cortiq.ir import Node, ops

NORMS = (ops.RMSNorm, ops.LayerNorm)
ELEMENTWISE = (ops.Add, ops.Multiply, ops.Scale, ops.Bias, ops.Activation, ops.SoftCap)


@dataclass(frozen=True)
class NormChain:
    """[norm `after`, then] [residual sum `add`, then] norm, then perhaps a quantised row.

    `total`, `out` and `record` name the values that are stored.
    """

    x: str
    residual: str | None = None
    after: Node | None = None
    norm: Node | None = None
    total: str | None = None
    out: str | None = None
    record: str | None = None


@dataclass(frozen=True)
class FusedElementwise:
    """An elementwise node, a gate (activation times another value), perhaps a quantised row."""

    node: Node
    gate: Node | None = None
    out: str | None = None
    record: str | None = None


@dataclass(frozen=True)
class HeadGroup:
    """Heads of one projection: [norm], [rope], quantised; to a record, or to the cache."""

    x: str
    quantise: Node
    norm: Node | None = None
    rope: Node | None = None
    target: str = "record"


@dataclass(frozen=True)
class QKVPrologue:
    """Parts that are computed in one op; `store` is the node that writes the slot, if one does."""

    parts: tuple[HeadGroup, ...]
    store: Node | None = None


@dataclass(frozen=True)
class FusedAttention:
    """Attend, and perhaps the quantised row of all heads."""

    node: Node
    out: str
    record: str | None = None


@dataclass(frozen=True)
class FusedProduct:
    """A matrix product with the bias, and then the residual, that are added to it."""

    node: Node
    bias: Node | None = None
    residual: str | None = None


@dataclass(frozen=True)
class LowRankPart:
    """A sum of a product, `base`, and B·quantise(A·x) of a row's overlay; A and B are nodes.

    residual : what the sum is then added to.
    """

    a: Node
    b: Node
    base: str
    out: str
    residual: str | None = None


@dataclass(frozen=True)
class FusedLowRank:
    """Sums of products of one row and its overlay's; inputs are the row, numbers, products, and of
    a single part the residual.
    """

    parts: tuple[LowRankPart, ...]


@dataclass(frozen=True)
class FusionPattern:
    """A pattern: tries to join a step of these operators with earlier ones."""

    takes: tuple[type, ...]
    join: Callable[[Fuser, LoweredStep], bool]

    def when(self, allowed: Callable[[Fuser, LoweredStep], bool]) -> FusionPattern:
        """Restrict the pattern to what a backend's kernels allow."""
        return FusionPattern(
            self.takes, lambda fuser, step: allowed(fuser, step) and self.join(fuser, step)
        )


class Fuser:
    """Joins the steps of one request.

    Parameters
    ----------
    patterns : those of the backend, see `cortiq.backend.patterns`.
    exposed : names that must exist as values when the batch is done.
    solid : names whose rows may be replaced in between: nothing is joined across them.
    takes_part : whether the backend's kernels compute these heads on their way into attention.
    """

    def __init__(
        self,
        patterns: Sequence[FusionPattern],
        lowered: Lowered,
        exposed: Iterable[str],
        solid: Iterable[str],
        takes_part: Callable[[HeadGroup], bool] = lambda part: True,
    ) -> None:
        self.patterns, self.lowered, self.takes_part = patterns, lowered, takes_part
        self.solid = {lowered.root(name) for name in solid}
        self.exposed = {lowered.root(name) for name in exposed} | self.solid
        steps = (*lowered.trunk, *lowered.tail)
        self.uses = Counter(lowered.root(n) for step in steps for n in step.inputs)
        self.done: list[LoweredStep] = []

    def fuse(self, steps: Sequence[LoweredStep]) -> tuple[LoweredStep, ...]:
        """Return the joined steps."""
        self.done = []
        for step in steps:
            joined = next(
                (j for j in self.patterns if isinstance(step.op, j.takes) and j.join(self, step)),
                None,
            )
            if joined is None:
                self.done.append(self._single(step))
        return tuple(self.done)

    def root(self, name: str) -> str:
        """Return the value whose buffer holds this one."""
        return self.lowered.root(name)

    def inner(self, name: str) -> bool:
        """Check whether a value has one reader and is not requested otherwise."""
        root = self.root(name)
        return self.uses[root] == 1 and root not in self.exposed

    def producer(self, name: str) -> int | None:
        """Find the place in `done` of a value's step; None for inputs of the steps."""
        root = self.root(name)
        places = (i for i in range(len(self.done) - 1, -1, -1) if root in self.done[i].outputs)
        return next(places, None)

    def maker(self, name: str, kind: Any) -> int | None:
        """Return the producer, if its op is of this kind and the value may be joined across."""
        place = self.producer(name)
        if place is None or self.root(name) in self.solid:
            return None
        return place if isinstance(self.done[place].op, kind) else None

    def replace_at(self, place: int, op: object, outputs: tuple[str | None, ...]) -> None:
        """Replace the step in this place by another op with these outputs."""
        stored = tuple(name for name in outputs if name is not None)
        self.done[place] = replace(self.done[place], op=op, outputs=stored)

    def _single(self, step: LoweredStep) -> LoweredStep:
        """Return the step with an op of this module, where there is one for it."""
        if isinstance(step.op, NORMS):
            chain = NormChain(step.inputs[0], norm=step.nodes[0], out=step.outputs[0])
            return replace(step, op=chain)
        if isinstance(step.op, ELEMENTWISE):
            return replace(step, op=FusedElementwise(step.nodes[0], out=step.outputs[0]))
        if isinstance(step.op, ops.Attend):
            return replace(step, op=FusedAttention(step.nodes[0], step.outputs[0]))
        return step
