"""The plan of an entry graph: op lists for each set of requested outputs, made on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cortiq.backend.admission import BY_ROW
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.lower import Admit, Lowered, LoweredStep, joined_products, lower
from cortiq.backend.requests import Ask, RequestedOutputs, RequestPlan
from cortiq.ir import Graph, Node, ops
from cortiq.ir.overlays import OVERLAY_INDEX
from cortiq_cpu.arena import Arena, ArenaOffsets, assign
from cortiq_cpu.bind import ops_of
from cortiq_cpu.binder import OpBinder, fields, row_bytes
from cortiq_cpu.fuse import fuser
from cortiq_cpu.native import NativeOp, ThreadPool, library, op_list
from cortiq_cpu.profile import OpLabel, moving
from cortiq_cpu.profile_costs import op_label
from cortiq_cpu.rotary_arrays import RotaryArrays
from cortiq_cpu.row_arrays import RowArrays
from cortiq_cpu.state_layout import StateLayout
from cortiq_cpu.wants import AnswerOp, parts_of
from cortiq_cpu.weights import PackedWeights

TRUNK_ROWS = 256
"""Rows of a chunk: enough for a weight to be read once for many of them."""
TAIL_BYTES = 16 << 20
"""Room for the widest value of the tail, usually logits: bounds the tail's rows."""
LONG = 1 << 16
"""Positions up to which few queries' keys are spread over threads."""


@dataclass
class CompiledOps:
    """Op lists for one set of requested outputs. Pairs are of the trunk and the tail.

    Attributes
    ----------
    lists : op lists, each ending with the answers about its values. whole : one after the other.
    labels : what a profile calls each op.
    asked : the answering ops.
    stops : for values that rows may replace, after how many ops they exist.
    snapping : for these values, the op that makes them canonical.
    late : wanted values that exist for the tail's rows only.
    exact : in mixed requests, the faults of each op of the tail and the names of its nodes.
    """

    graph: Graph
    lowered: Lowered
    places: ArenaOffsets
    arena: Arena
    lists: tuple[Any, Any]
    whole: Any
    labels: tuple[list[OpLabel], list[OpLabel]]
    asked: tuple[list[AnswerOp], list[AnswerOp]]
    stops: tuple[list[tuple[int, str]], list[tuple[int, str]]]
    snapping: Mapping[str, Any]
    late: frozenset[str]
    exact: list[tuple[np.ndarray, frozenset[str]]]
    kept: list[Any]

    def buffer(self, name: str, count: int) -> np.ndarray:
        """Return the first rows of a value's buffer: bytes [count, size]."""
        size = row_bytes(self.graph.values[name])
        offset = self.places.offsets[self.lowered.root(name)]
        return self.arena.view(offset, count * size).reshape(count, size)

    def row(self, name: str, place: int) -> np.ndarray:
        """Return row `place` of a value's buffer: bytes."""
        size = row_bytes(self.graph.values[name])
        offset = self.places.offsets[self.lowered.root(name)]
        return self.arena.view(offset + place * size, size)


class CpuPlan(RequestPlan[CompiledOps]):
    """An entry graph of primitives with its weights."""

    angles: RotaryArrays

    def __init__(
        self,
        graph: Graph,
        weights: PackedWeights,
        layout: StateLayout,
        pool: ThreadPool,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        super().__init__(graph)
        graph = self.graph
        self.layout, self.pool, self.weights, self.given = layout, pool, weights, given
        for node in graph.nodes:
            weights.prepare(node)
        late = (row_bytes(t) for n, t in graph.values.items() if n not in self.always)
        tail_rows = min(TRUNK_ROWS, max(1, TAIL_BYTES // max(late, default=1)))
        self.sets = RowArrays(TRUNK_ROWS, layout), RowArrays(tail_rows, layout)
        self.angles = RotaryArrays(graph.nodes)
        self.workspace = Arena(self._workspace_bytes())
        self.arena = Arena(0)

    def hold(self, rows: int) -> None:
        """Have room for chunks of so many rows, which see one another; op lists are made anew."""
        more = -(-rows // TRUNK_ROWS) * TRUNK_ROWS
        if more > self.sets[0].capacity:
            self._compiled.clear()
            self.angles.forget()
            self.sets = RowArrays(more, self.layout), self.sets[1]

    def _workspace_bytes(self) -> int:
        """Count the workspace bytes of attention and answers."""
        native, threads = library(), self.pool.threads
        attends = {(n.op.value_dim, LONG) for n in self.graph.nodes if isinstance(n.op, ops.Attend)}
        sizes = [native.cortiq_attend_workspace(*shape, threads) for shape in attends]
        ranks = [fields(n).out_width for n in self.graph.nodes if _is_overlay(n)]
        sizes += [native.cortiq_low_rank_workspace(max(ranks), threads)] if ranks else []
        widths = [prod(type_.shape) for type_ in self.graph.values.values()]  # rows want any digest
        sizes.append(native.cortiq_tail_workspace(max(widths, default=1), threads))
        return max(sizes)

    def compile(self, request: RequestedOutputs) -> CompiledOps:
        """Make the op lists of a request."""
        lowered = joined_products(lower(self.graph, request.wanted, self.given))
        trunk = fuser(lowered, request.wanted, request.supplied).fuse(lowered.trunk)
        apart = frozenset(lowered.types) if request.mixed else request.supplied
        tail = fuser(lowered, request.wanted, apart).fuse(lowered.tail)
        places = self._places(lowered, trunk, tail, request)
        if places.size > self.arena.size:
            # Op lists hold addresses: those of the smaller block are made anew when needed.
            self._compiled.clear()
            self.arena = Arena(places.size)
        binders = self._binder(lowered, places, 0), self._binder(lowered, places, 1)
        asked: tuple[list[AnswerOp], list[AnswerOp]] = ([], [])
        late = frozenset(n for n in request.wanted if lowered.root(n) not in self.always)
        parts = {part for ask in request.asks for part in parts_of(ask)}
        for ask in sorted(parts):
            asked[ask.value in late].append(self._asked(ask, binders[ask.value in late]))
        bound = [
            _bind(binder, steps, request.supplied)
            for binder, steps in zip(binders, (trunk, tail), strict=True)
        ]
        pairs = list(zip(bound, asked, strict=True))
        exact = _separate_faults(bound[1], self.sets[1].capacity) if request.mixed else []
        ops = [one.ops + [asking.op() for asking in group] for one, group in pairs]
        labels = [
            one.labels + [self._answering(asking) for asking in group] for one, group in pairs
        ]
        snapping = {
            name: op_list(ops_of(binder, LoweredStep(Admit(), (name,), (name,))))
            for binder, one in zip(binders, bound, strict=True)
            for _, name in one.stops
        }
        return CompiledOps(
            graph=self.graph,
            lowered=lowered,
            places=places,
            arena=self.arena,
            lists=(op_list(ops[0]), op_list(ops[1])),
            whole=op_list(ops[0] + ops[1]),
            labels=(labels[0], labels[1]),
            asked=asked,
            stops=(bound[0].stops, bound[1].stops),
            snapping=snapping,
            late=late,
            exact=exact,
            kept=[binder.kept for binder in binders],
        )

    def _places(
        self,
        lowered: Lowered,
        trunk: tuple[LoweredStep, ...],
        tail: tuple[LoweredStep, ...],
        request: RequestedOutputs,
    ) -> ArenaOffsets:
        sizes: dict[str, int] = {}
        made = {name for step in trunk for name in step.outputs} | set(self.graph.inputs)
        for name, type_ in lowered.types.items():
            rows = self.sets[lowered.root(name) not in made]
            if name not in BY_ROW:
                sizes[name] = rows.capacity * row_bytes(type_)
        gathered = lowered.gathered()
        kept = {*request.wanted, *request.supplied, *gathered, *self.graph.inputs}
        first = [name for name in self.graph.inputs if name not in BY_ROW]
        return assign(lowered, (*trunk, *tail), sizes, kept - set(BY_ROW), first)

    def _binder(self, lowered: Lowered, places: ArenaOffsets, number: int) -> OpBinder:
        shared = (self.angles, self.layout, self.weights, self.workspace)
        return OpBinder(lowered, places, self.arena, self.sets[number], *shared)

    def _asked(self, ask: Ask, binder: OpBinder) -> AnswerOp:
        capacity, place = binder.rows.capacity, binder.at(ask.value)
        width = prod(self.graph.values[ask.value].shape)
        assert place is not None
        return AnswerOp.bound(ask, place, width, capacity, self.workspace.address)

    def _answering(self, asked: AnswerOp) -> OpLabel:
        return OpLabel(asked.ask.kind, moving(row_bytes(self.graph.values[asked.ask.value])))


def _is_overlay(node: Node) -> bool:
    """Check for a product with a row's own matrix of the overlays'."""
    return isinstance(node.op, ops.ExpertMatMul) and node.inputs[1] == OVERLAY_INDEX


class BoundOps(NamedTuple):
    """Ops of a set's steps; numbers of ops after which supplied values exist; labels and nodes."""

    ops: list[NativeOp]
    stops: list[tuple[int, str]]
    labels: list[OpLabel]
    nodes: list[frozenset[str]]


def _bind(binder: OpBinder, steps: tuple[LoweredStep, ...], supplied: frozenset[str]) -> BoundOps:
    bound = BoundOps([], [], [], [])
    for step in steps:
        new = ops_of(binder, step)
        bound.ops.extend(new)
        bound.labels.extend([op_label(binder, step), *[OpLabel(step.label)] * (len(new) - 1)])
        bound.nodes.extend([frozenset(node.name for node in step.nodes)] * len(new))
        bound.stops.extend((len(bound.ops), name) for name in step.outputs if name in supplied)
    return bound


def _separate_faults(bound: BoundOps, capacity: int) -> list[tuple[np.ndarray, frozenset[str]]]:
    """Give each op fault flags of its own."""
    exact = []
    for op, names in zip(bound.ops, bound.nodes, strict=True):
        flags = np.zeros(capacity, np.uint8)
        op.faults = flags.ctypes.data
        exact.append((flags, names))
    return exact
