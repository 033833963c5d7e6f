"""From an entry graph of primitives to the steps of a request: what state depends on, for all rows
(the *trunk*), and the rest, for rows that want it (the *tail*); in an order that lets neighbours be
one dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from cortiq.backend.plan import needed
from cortiq.ir import Graph, Node, Type, ops

TAIL = "@tail"
"""Suffix of the copy of a trunk value that holds the tail's rows only."""
SIDE_VALUES = ("token", "position")
"""Inputs that the batch's records hold."""
WIDE = (
    ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul, ops.EmbedRows, ops.CausalConv, ops.DeltaRule,
    ops.StateSpace, ops.ChooseBlocks,
)  # fmt: skip
"""Primitives with dispatches of their own; all others are stages of one row."""


@dataclass(frozen=True)
class Gather:
    """Copies the tail's rows of a trunk value."""


@dataclass(frozen=True)
class Admit:
    """Passes what rows supply through `snap`."""


@dataclass(frozen=True)
class Spread:
    """Attention's runs of keys, each by itself, to the scratch memory."""

    attend: ops.Attend


@dataclass(frozen=True)
class Merge:
    """Attention's runs of keys, added up."""

    attend: ops.Attend


@dataclass(frozen=True)
class Step:
    """What one stage or dispatch computes.

    Attributes
    ----------
    op : a primitive, or one of this module's. after : values that must be there before, though the
    step reads none of them: what is written to state has names of its own.
    """

    op: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node: Node | None = None
    tail: bool = False
    after: tuple[str, ...] = ()

    @property
    def wide(self) -> bool:
        """Whether it is a dispatch of its own."""
        return isinstance(self.op, (*WIDE, Spread))


@dataclass(frozen=True)
class Lowered:
    """Steps of a request in groups: each a wide step, or stages of one dispatch.

    Attributes
    ----------
    types : type of every value, copies included. aliases : reshaped values, by whose memory.
    """

    groups: tuple[tuple[Step, ...], ...]
    types: dict[str, Type]
    aliases: dict[str, str]

    def root(self, name: str) -> str:
        """The value whose memory holds this one."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def gathered(self) -> set[str]:
        """Values of the trunk that the tail reads."""
        steps = (step for group in self.groups for step in group)
        return {name for step in steps if isinstance(step.op, Gather) for name in step.inputs}


@dataclass
class Lowering:
    """Steps of one request.

    Attributes
    ----------
    solid : values that rows may replace: what reads them is never in the dispatch that computes
        them. single : whether each step of the tail is a dispatch of its own.
    joined : what products of one dispatch have in common; None for other steps.
    """

    graph: Graph
    always: frozenset[str]
    solid: frozenset[str] = frozenset()
    single: bool = False
    joined: Callable[[Step], object] = lambda step: None
    types: dict[str, Type] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def lowered(self, wanted: frozenset[str]) -> Lowered:
        """Steps for rows that want these values."""
        chosen = needed(self.graph.nodes, wanted)
        nodes = [node for node in self.graph.nodes if node.name in chosen]
        self.types = dict(self.graph.values)
        self.aliases = {n.outputs[0]: n.inputs[0] for n in nodes if isinstance(n.op, ops.Reshape)}
        given = [n for n in self.graph.inputs if self.types[n].dtype == "f32"]
        steps = [Step(Admit(), (name,), (f"{name}@admitted",)) for name in given]
        admitted = {name: f"{name}@admitted" for name in given}
        for node in nodes:
            steps += self._steps_of(node)
        for place, step in enumerate(steps):
            if not isinstance(step.op, Admit):
                first = (admitted[r] for r in map(self.root, step.inputs) if r in admitted)
                steps[place] = replace(step, after=(*step.after, *first))
        trunk = self._ordered([s for s in _in_turn(steps) if not s.tail])
        tail = self._ordered(self._gathered([s for s in _in_turn(steps) if s.tail]))
        return Lowered((*trunk, *tail), self.types, self.aliases)

    def _steps_of(self, node: Node) -> list[Step]:
        if isinstance(node.op, ops.Reshape):
            return []
        tail = bool(node.outputs) and node.outputs[0] not in self.always
        written = tuple(f"@{name}" for name in node.slots.values())
        if isinstance(node.op, ops.StoreKV):
            return [Step(node.op, node.inputs, written, node, tail)]
        if isinstance(node.op, ops.Route):  # every expert's p needs a place, too
            beside = f"{node.outputs[1]}@p"
            self.types[beside] = self.types[node.inputs[0]]
            return [Step(node.op, node.inputs, (*node.outputs, beside), node, tail)]
        if not isinstance(node.op, ops.Attend):
            reads = isinstance(node.op, ops.ChooseBlocks | ops.Recall)
            return [Step(node.op, node.inputs, node.outputs, node, tail, written if reads else ())]
        runs = f"{node.name}@runs"
        spread = Step(Spread(node.op), node.inputs, (runs,), node, tail, written)
        return [spread, Step(Merge(node.op), (), node.outputs, node, tail, (runs,))]

    def root(self, name: str) -> str:
        """The value whose memory holds this one."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def _gathered(self, steps: list[Step]) -> list[Step]:
        """The tail's steps, reading copies of what the trunk computed."""
        done: list[Step] = []
        known: set[str] = set()
        for step in steps:
            inputs = []
            for name in step.inputs:
                copy = self._copy_of(name)
                whole = self.root(copy)
                if copy != name and whole not in known:
                    known.add(whole)
                    done.append(Step(Gather(), (whole.removesuffix(TAIL),), (whole,), tail=True))
                inputs.append(copy)
            done.append(replace(step, inputs=tuple(inputs)))
        return done

    def _copy_of(self, name: str) -> str:
        root = self.root(name)
        if name in SIDE_VALUES or root not in self.always:
            return name
        self.types[name + TAIL] = self.types[name]
        if root != name:
            self.types[root + TAIL] = self.types[root]
            self.aliases[name + TAIL] = root + TAIL
        return name + TAIL

    def _ordered(self, steps: list[Step]) -> list[tuple[Step, ...]]:
        """All wide steps that are ready, then all stages that are ready, and again."""
        made = {self.root(name) for step in steps for name in step.outputs}
        there: set[str] = set()
        waiting = list(steps)
        groups: list[tuple[Step, ...]] = []
        while waiting:
            ready = [step for step in waiting if step.wide and self._is_ready(step, made, there)]
            together: dict[object, list[Step]] = {}
            for step in ready:
                key = self.joined(step)
                together.setdefault(id(step) if key is None else key, []).append(step)
            groups += map(tuple, together.values())
            self._take(ready, waiting, there)
            groups += self._stages(waiting, made, there)
        return groups

    def _is_ready(self, step: Step, made: set[str], there: set[str]) -> bool:
        roots = {self.root(name) for name in (*step.inputs, *step.after)}
        return all(root in there for root in roots & made)

    def _take(self, steps: list[Step], waiting: list[Step], there: set[str]) -> None:
        for step in steps:
            waiting.remove(step)
            there.update(self.root(name) for name in step.outputs)

    def _stages(
        self, waiting: list[Step], made: set[str], there: set[str]
    ) -> list[tuple[Step, ...]]:
        """Stages that are ready, one dispatch as long as they see one slot and nothing solid."""
        groups: list[list[Step]] = []
        slots: set[str] = set()
        while True:
            ready = (s for s in waiting if not s.wide and self._is_ready(s, made, there))
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


def _in_turn(steps: list[Step]) -> list[Step]:
    """Attention follows attention: they share the scratch memory."""
    done: list[Step] = []
    before: tuple[str, ...] = ()
    for step in steps:
        if isinstance(step.op, (Spread, ops.ChooseBlocks)):
            step = replace(step, after=(*step.after, *before))
        if isinstance(step.op, (Merge, ops.ChooseBlocks)):
            before = step.outputs
        done.append(step)
    return done
