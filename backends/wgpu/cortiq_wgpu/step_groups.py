"""The steps of a request in an order that lets neighbours be one dispatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cortiq.backend.lower import Admit, Lowered, LoweredStep
from cortiq.ir import Type, ops

WIDE = (
    ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul, ops.EmbedRows, ops.CausalConv, ops.DeltaRule,
    ops.StateSpace, ops.ChooseBlocks, ops.ChooseKeys, ops.Compress,
    ops.HashNGrams,
)  # fmt: skip
"""Primitives with dispatches of their own; all others are stages of one row."""
CHOICES = (ops.ChooseBlocks, ops.ChooseKeys)
"""Primitives that keep scores in the scratch memory."""


@dataclass(frozen=True)
class AttentionSplits:
    """Attention's runs of keys, each by itself, to the scratch memory."""

    attend: ops.Attend


@dataclass(frozen=True)
class AttentionMerge:
    """Attention's runs of keys, added up."""

    attend: ops.Attend


@dataclass(frozen=True)
class GroupedSteps(Lowered):
    """Steps of a request in groups: each a wide step, or stages of one dispatch."""

    groups: tuple[tuple[LoweredStep, ...], ...] = ()


def is_wide(step: LoweredStep) -> bool:
    """Check whether a step is a dispatch of its own."""
    return isinstance(step.op, (*WIDE, AttentionSplits))


@dataclass
class StepGrouper:
    """Orders the steps of one request, so that neighbours can be one dispatch.

    Attributes
    ----------
    solid : values that rows may replace: what reads them is never in the dispatch that computes
        them. single : whether each step of the tail is a dispatch of its own.
    joined : what products of one dispatch have in common; None for other steps.
    """

    lowered: Lowered
    solid: frozenset[str] = frozenset()
    single: bool = False
    joined: Callable[[LoweredStep], object] = lambda step: None

    def grouped(self) -> GroupedSteps:
        """Return the steps in groups, trunk before tail."""
        whole = self.lowered
        trunk, tail = (
            self._ordered(_in_turn([part for step in steps for part in self._parts(step)]))
            for steps in (whole.trunk, whole.tail)
        )
        return GroupedSteps(whole.trunk, whole.tail, whole.types, whole.aliases, (*trunk, *tail))

    def _parts(self, step: LoweredStep) -> list[LoweredStep]:
        """Return a step's parts with dependencies; writes to state have names of their own."""
        if step.node is None:
            return [step]
        written = tuple(f"@{name}" for name in step.node.slots.values())
        if isinstance(step.op, ops.StoreKV):
            return [replace(step, outputs=written)]
        if isinstance(step.op, ops.Route):  # every expert's p needs a place, too
            beside = f"{step.outputs[1]}@p"
            self.lowered.types[beside] = self.lowered.types[step.inputs[0]]
            return [replace(step, outputs=(*step.outputs, beside))]
        if isinstance(step.op, ops.Compress):  # rows and their gates, as the ring keeps them
            beside = f"{step.outputs[0]}@kept"
            self.lowered.types[beside] = Type((2 * step.op.parts * step.op.width,))
            return [replace(step, outputs=(*step.outputs, beside))]
        if not isinstance(step.op, ops.Attend):
            reads = isinstance(step.op, (*CHOICES, ops.Recall))
            return [replace(step, after=written if reads else ())]
        runs = f"{step.node.name}@runs"
        spread = replace(step, op=AttentionSplits(step.op), outputs=(runs,), after=written)
        return [spread, replace(step, op=AttentionMerge(step.op), inputs=(), after=(runs,))]

    def root(self, name: str) -> str:
        """Return the value whose memory holds this one."""
        return self.lowered.root(name)

    def _ordered(self, steps: list[LoweredStep]) -> list[tuple[LoweredStep, ...]]:
        """Order all ready wide steps, then all ready stages, and repeat."""
        made = {self.root(name) for step in steps for name in step.outputs}
        there: set[str] = set()
        waiting = list(steps)
        groups: list[tuple[LoweredStep, ...]] = []
        while waiting:
            ready = [
                step for step in waiting if is_wide(step) and self._is_ready(step, made, there)
            ]
            together: dict[object, list[LoweredStep]] = {}
            for step in ready:
                key = self.joined(step)
                together.setdefault(id(step) if key is None else key, []).append(step)
            groups += map(tuple, together.values())
            self._take(ready, waiting, there)
            groups += self._stages(waiting, made, there)
        return groups

    def _is_ready(self, step: LoweredStep, made: set[str], there: set[str]) -> bool:
        roots = {self.root(name) for name in (*step.inputs, *step.after)} - set(step.outputs)
        return all(root in there for root in roots & made)

    def _take(self, steps: list[LoweredStep], waiting: list[LoweredStep], there: set[str]) -> None:
        for step in steps:
            waiting.remove(step)
            there.update(self.root(name) for name in step.outputs)

    def _stages(
        self, waiting: list[LoweredStep], made: set[str], there: set[str]
    ) -> list[tuple[LoweredStep, ...]]:
        """Group ready stages: one dispatch as long as they see one slot and nothing solid."""
        groups: list[list[LoweredStep]] = []
        slots: set[str] = set()
        while True:
            ready = (s for s in waiting if not is_wide(s) and self._is_ready(s, made, there))
            step = next(ready, None)
            if step is None:
                return [tuple(group) for group in groups]
            mine = set(step.node.slots.values()) if step.node else set()
            split = self.single or len(slots | mine) > 1 or isinstance(step.op, Admit)
            if groups and not split:
                read = {self.root(name) for name in step.inputs}
                within = {self.root(name) for other in groups[-1] for name in other.outputs}
                split = bool(read & within & self.solid) or isinstance(groups[-1][0].op, Admit)
            if not groups or split:
                groups.append([])
                slots = set()
            slots |= mine
            groups[-1].append(step)
            self._take([step], waiting, there)


def _in_turn(steps: list[LoweredStep]) -> list[LoweredStep]:
    """Order attention after attention: they share the scratch memory."""
    done: list[LoweredStep] = []
    before: tuple[str, ...] = ()
    for step in steps:
        if isinstance(step.op, (AttentionSplits, *CHOICES)):
            step = replace(step, after=(*step.after, *before))
        if isinstance(step.op, (AttentionMerge, *CHOICES)):
            before = step.outputs
        done.append(step)
    return done
