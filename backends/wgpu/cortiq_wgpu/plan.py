"""The plan of an entry graph: dispatches for each set of requested outputs, made on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from cortiq.backend import Row
from cortiq.backend.admission import BY_ROW
from cortiq.backend.kernel import GivenKernels
from cortiq.backend.lower import Admit, LoweredStep, lower
from cortiq.backend.requests import Ask, RequestedOutputs, RequestPlan, asked_by
from cortiq.errors import BackendError
from cortiq.ir import Graph, ops
from cortiq.numerics.scores import scoring, steepness
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.block_offsets import BlockOffsets, assign, row_words
from cortiq_wgpu.compiled_dispatches import BoundDispatch, CompiledDispatches, SharedBuffers
from cortiq_wgpu.device import SLICE, GpuDevice
from cortiq_wgpu.dispatch import Dispatch, Grid
from cortiq_wgpu.package import compile_shaders
from cortiq_wgpu.rotary_records import RotaryRecords
from cortiq_wgpu.row_dispatches import stage_works
from cortiq_wgpu.shader_source import staged
from cortiq_wgpu.stages import MAKERS
from cortiq_wgpu.state_memory import WgpuStateMemory
from cortiq_wgpu.step_dispatches import dispatches
from cortiq_wgpu.step_groups import CHOICES, GroupedSteps, StepGrouper, is_wide
from cortiq_wgpu.tuning import ProductTuning
from cortiq_wgpu.wants import answering, draw_words, with_drawn, words_of
from cortiq_wgpu.weights import DeviceWeights

TRUNK_ROWS = 256
"""Rows of a chunk: enough for a weight to be read once for many of them."""
FEW_ROWS = 8
"""Up to so many rows a product reads its weights for a few at a time; on a GPU `Tuning.few`."""
TAIL_BYTES = 16 << 20
"""Room for the widest value of the tail, usually logits: bounds the tail's rows."""
MOST_GROUPS = 65535
"""Workgroups in one direction that every device has."""
SCRATCH_BYTES = 1 << 24
"""Attention's runs of keys are computed side by side while their sums fit."""


class WgpuPlan(RequestPlan[CompiledDispatches]):
    """An entry graph of primitives with its weights."""

    most_compiled: ClassVar[int] = 32
    angles: RotaryRecords

    def __init__(
        self,
        graph: Graph,
        weights: DeviceWeights,
        pools: WgpuStateMemory,
        gpu: GpuDevice,
        tuning: ProductTuning | None,
        context: int,
        given: GivenKernels,
    ) -> None:
        super().__init__(graph)
        self.weights, self.pools, self.gpu, self.given = weights, pools, gpu, given
        self.tuning, self.context = tuning, context
        self.angles = RotaryRecords(graph.nodes)
        self.memory = SharedBuffers(gpu)
        late = (row_words(t) for n, t in self.graph.values.items() if n not in self.always)
        inner = (prod(t.shape[:-1]) for t in self.graph.values.values() if t.shape)
        self.most_rows = most = max(1, MOST_GROUPS // max(inner, default=1))
        self.few = FEW_ROWS if tuning is None else tuning.few
        self.rows = min(TRUNK_ROWS * (1 + (tuning is not None)), most)
        room = max(1, TAIL_BYTES // (4 * max(late, default=1)))
        self.tail_rows = min(TRUNK_ROWS, self.rows, room)
        self.attends = [n.op for n in graph.nodes if isinstance(n.op, ops.Attend)]
        self.scoring = {op: scoring(op.scale, op.soft_cap) for op in self.attends}
        self.steepness = {op: steepness(op.slopes) for op in self.attends}
        choices: list[Any] = [n.op for n in graph.nodes if isinstance(n.op, CHOICES)]
        self.blocks = [getattr(op, "block", 0) or op.every for op in choices]

    def hold(self, rows: int) -> None:
        """Have room for passes of so many rows, which see one another; dispatches are made anew.

        Raises
        ------
        BackendError : a dispatch cannot have so many.
        """
        if rows > self.most_rows:
            what = f"{rows} rows see one another, more than {self.most_rows}"
            raise BackendError(what, hint="give a shorter text, or draft fewer at a time")
        if rows > self.rows:
            self._compiled.clear()
            self.rows = min(-(-rows // TRUNK_ROWS) * TRUNK_ROWS, self.most_rows)

    def request_of(self, rows: Sequence[Row]) -> RequestedOutputs:
        """Collect the requests of rows, drawn logits among them."""
        request = super().request_of(rows)
        kinds = {row.wants for row in rows if row.wants}
        asked = (ask for wants in kinds for _, ask in with_drawn(asked_by(wants)))
        drawn = {ask for ask in asked if ask is not None and ask.kind == "drawn"}
        return request._replace(asks=request.asks | drawn)

    def compiled(self, request: RequestedOutputs) -> CompiledDispatches:
        """Return the dispatches of a request, bound to the current buffers."""
        found = super().compiled(request)
        if found.version != self._version():
            self._bind(found)
        return found

    def _version(self) -> tuple[int, int]:
        return self.pools.version, self.memory.version

    def compile(self, request: RequestedOutputs) -> CompiledDispatches:
        """Make the dispatches of a request."""
        solid = request.supplied
        steps = lower(self.graph, request.wanted, self.given)
        lowered = StepGrouper(steps, solid, request.mixed, self._together).grouped()
        places = self._places(lowered, request)
        binder = DispatchBinder(
            lowered,
            places,
            self.weights,
            self.angles,
            self.pools,
            self.gpu.dot,
            self.scoring,
            self.steepness,
            self.tuning,
            self.rows,
            self.context,
        )
        works = [
            work
            for group in lowered.groups
            for work in (*self._works(binder, group), *self._given(binder, group, solid))
        ]
        late = frozenset(n for n in request.wanted if lowered.root(n) not in self.always)
        answers, end = {}, places.numbers
        tops: dict[Ask, int] = {}
        for ask in sorted(request.asks):
            tail = ask.value in late
            rows = self.tail_rows if tail else self.rows
            answers[ask], end = end, end + rows * words_of(ask)
            work = end
            if ask.kind == "draw":
                end += rows * draw_words(binder.size(ask.value))
            if ask.kind == "top":
                tops[ask] = 1 << len(tops)
            bit = tops.get(ask, 0)
            for stage, values, groups in answering(binder, ask, answers[ask], work, bit):
                kernel = staged((stage,), self.gpu.dot)
                works.append(Dispatch(kernel, (values,), Grid(groups), tail, label=ask.kind))
        self.memory.have("x", end)
        self.memory.have("q", places.records)
        self.memory.have("turned", max((work.turned for work in works), default=0))
        regions = self._regions(works, request.mixed)
        compiled = CompiledDispatches(
            lowered, places, works, answers, late, tops, regions, [], (-1, -1)
        )
        self._bind(compiled)
        return compiled

    def _together(self, step: LoweredStep) -> object:
        """Return the key of products whose matrices lie one after the other."""
        if not isinstance(step.op, ops.MatMul) or step.node is None:
            return None
        matrix = self.weights.matrix(step.node, "weight")
        return (id(matrix.parts[0]), step.inputs, step.tail) if len(matrix.parts) == 1 else None

    def _works(self, binder: DispatchBinder, group: tuple[LoweredStep, ...]) -> list[Dispatch]:
        nodes = frozenset(step.node.name for step in group if step.node)
        outputs = tuple(name for step in group for name in step.outputs)
        made = (dispatches if is_wide(group[0]) else stage_works)(binder, group)
        compile_shaders(self.gpu, group, [work.kernel for work in made])
        label = " ".join(dict.fromkeys(step.kind for step in group))
        return [replace(w, label=w.label or label, nodes=nodes, outputs=outputs) for w in made]

    def _given(
        self, binder: DispatchBinder, group: tuple[LoweredStep, ...], solid: frozenset[str]
    ) -> list[Dispatch]:
        """Make the dispatches that pass values replaced by rows through `snap`."""
        works = []
        for name in (n for step in group for n in step.outputs if n in solid):
            bound = MAKERS[Admit](binder, LoweredStep(Admit(), (name,), ()))
            kernel = staged(tuple(stage for stage, _ in bound), self.gpu.dot)
            values = tuple(values for _, values in bound)
            works.append(Dispatch(kernel, values, Grid(), group[0].tail, given=name))
        return works

    def _regions(
        self, works: list[Dispatch], mixed: bool
    ) -> list[tuple[int, bool, frozenset[str] | None]]:
        """Lay out fault flags of trunk and tail, in mixed requests of each dispatch of the tail."""
        regions: list[tuple[int, bool, frozenset[str] | None]] = [(0, False, None)]
        if not mixed:
            return [*regions, (self.rows, True, None)]
        start = self.rows
        for work in works:
            if work.tail:
                regions.append((start, True, work.nodes or None))
                start += self.tail_rows
        return regions

    def _places(self, lowered: GroupedSteps, request: RequestedOutputs) -> BlockOffsets:
        late = {
            name for group in lowered.groups for step in group if step.tail for name in step.outputs
        }
        roots = {
            lowered.root(n) for g in lowered.groups for s in g for n in (*s.inputs, *s.outputs)
        }
        roots |= set(self.graph.inputs)
        rows = {
            name: self.tail_rows if name in late else self.rows
            for name in roots
            if name in lowered.types and name not in BY_ROW
        }
        kept = {*request.wanted, *request.supplied, *self.graph.inputs} - set(BY_ROW)
        if self.tail_rows < self.rows:  # the tail may be passed again, and reads these each time
            kept |= lowered.gathered()
        places = assign(lowered, rows, kept)
        if 4 * max(places.numbers, places.records) <= self.pools.limit // 2 or self.rows <= 1:
            return places
        self.rows //= 2  # fewer rows at a time, so that their values fit in what a kernel sees
        self.tail_rows = min(self.tail_rows, self.rows)
        self._compiled.clear()
        return self._places(lowered, request)

    def _bind(self, compiled: CompiledDispatches) -> None:
        """Make the bind groups of all dispatches."""
        bases = iter(compiled.regions[1:])
        words: list[int] = []
        slices: list[tuple[Dispatch, int, int]] = []
        mixed = len(compiled.regions) != 2 or compiled.regions[1][2] is not None
        for work in compiled.works:
            base = 0
            if work.tail:
                base = next(bases)[0] if mixed else compiled.regions[1][0]
            for one in filter(None, (work, work.some, work.many)):
                common = (base, int(work.tail), self.angles.words)
                mine = one.kernel.words(common, one.values)
                slices.append((one, 4 * len(words), 4 * len(mine)))
                words += mine
                words += [0] * (-len(words) % (SLICE // 4))
        parameters = self.gpu.uploaded(np.array(words or [0], np.uint32))
        last = max(
            begin + (self.tail_rows if tail else self.rows) for begin, tail, _ in compiled.regions
        )
        self.memory.have("faults", last)
        self.memory.have("m", 1 << 12)
        self.memory.have("scratch", self._scratch_words())
        self.memory.have("none", 4)
        ready = [self._ready(one, (parameters, *place)) for one, *place in slices]
        compiled.ready = []
        rest = iter(ready)
        for work in compiled.works:
            first = next(rest)
            some = next(rest) if work.some else first
            compiled.ready.append((first, some, next(rest) if work.many else some))
        compiled.version = self._version()

    def _scratch_words(self) -> int:
        most = [self.rows * op.heads * (op.value_dim + 3) for op in self.attends]
        return max([SCRATCH_BYTES // 4 if most or self.blocks else 4, *most])

    def _ready(self, work: Dispatch, parameters: tuple[Any, ...]) -> BoundDispatch:
        held = self.memory.buffers
        buffers = {**held, "w": self.weights.buffer, "p": parameters, **work.buffers}
        buffers["pool"] = self.pools.buffers[work.pool] if work.pool else held["none"]
        kernel = work.kernel
        return BoundDispatch(self.gpu.pipeline(kernel)[0], self.gpu.bound(kernel, buffers), work)

    def parts_for(self, rows: int, first: int, last: int) -> int:
        """Return the parts of attention's keys: its runs side by side, or 1.

        Parameters
        ----------
        first, last : lowest and highest position of the rows.
        """
        runs = last // 1024 + 1
        each = max((op.heads * (op.value_dim + 3) for op in self.attends), default=0)
        return runs if rows * each * runs <= SCRATCH_BYTES // 4 else 1

    def choices_for(self, last: int) -> int:
        """Return the blocks, or keys, that a row may have to score."""
        return max((last // block + 1 for block in self.blocks), default=0)

    def words_of(self, name: str) -> int:
        """Count the words of a row's value."""
        return row_words(self.graph.values[name])

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a row's value."""
        return self.graph.values[name].shape

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Types of the inputs that rows supply."""
        return {n: self.graph.values[n] for n in self.graph.inputs if n not in BY_ROW}
