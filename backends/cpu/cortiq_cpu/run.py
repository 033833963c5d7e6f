"""A batch computed by a plan: chunks of rows, native calls, requested outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from cortiq.backend import Batch, Draw, DrawnLogit, Named, Want
from cortiq.backend.admission import BY_ROW
from cortiq.backend.executable import Accepted, Brought
from cortiq.backend.flat_rows import FlatBatch
from cortiq.backend.last_keys import chunks_of
from cortiq.backend.requests import Ask, asked_by
from cortiq.backend.wants import value_of
from cortiq_cpu.native import NativeOp
from cortiq_cpu.plan import CompiledOps, CpuPlan
from cortiq_cpu.profile import OpLabel, OpProfile
from cortiq_cpu.quantised_rows import read_records, write_records
from cortiq_cpu.state import CpuState
from cortiq_cpu.wants import fill_draw, parts_of

OP_BYTES = ctypes.sizeof(NativeOp)


class CpuRun(FlatBatch[CpuPlan]):
    """One batch.

    Attributes
    ----------
    which : rows that the trunk set (0) and the tail set (1) hold now.
    """

    compiled: CompiledOps

    def __init__(
        self,
        plan: CpuPlan,
        batch: Batch,
        accepted: Sequence[Accepted[CpuState]],
        profile: OpProfile | None = None,
    ) -> None:
        super().__init__(plan, batch, accepted)
        self.profile = profile
        self.which: list[np.ndarray] = [np.zeros(0, np.int64)] * 2
        self.answers: dict[tuple[Ask, int], Any] = {}
        self._alive: list[Any] = []

    def compute(self) -> list[Sequence[Brought] | None]:
        """Run all chunks and return the outputs of each sequence's rows."""
        chunks = list(chunks_of(self.rows, self.plan.until, self.plan.sets[0].capacity))
        self.plan.hold(max(stop - start for start, stop in chunks))
        self.compiled = self.plan.compiled(self.request)
        for start, stop in chunks:
            self._chunk(np.arange(start, stop))
        return self.outcome()

    def _chunk(self, chunk: np.ndarray) -> None:
        """Compute some rows: all through the trunk, those with late wants through the tail."""
        late = [row for row in chunk.tolist() if self.has_late_wants(row)]
        self._fill(0, chunk)
        self._take_inputs()
        capacity = self.plan.sets[1].capacity
        if late and len(late) <= capacity and not self.request.supplied:
            self._fill(1, np.array(late))
            self._call(self.compiled.whole, self.compiled.labels[0] + self.compiled.labels[1])
            self._collect(1)
        else:
            self._run(0)
            for start in range(0, len(late), capacity):
                self._fill(1, np.array(late[start : start + capacity]))
                self._run(1)
                self._collect(1)
        self._collect(0)

    def _fill(self, number: int, rows: np.ndarray) -> None:
        """Write these rows to a set, and the rows of each answering op."""
        flat, row_set = self.flat, self.plan.sets[number]
        self.which[number] = rows
        row_set.fill(flat.tokens[rows], flat.positions[rows], flat.stretches(rows))
        if number:
            row_set.source[: len(rows)] = rows - self.which[0][0]
            for flags, _ in self.compiled.exact:
                flags[: len(rows)] = 0
        self.plan.angles.fill(row_set, self.supplied_positions(rows))
        for asked in self.compiled.asked[number]:
            asking = [
                (place, want)
                for place, row in enumerate(rows.tolist())
                for want, ask in asked_by(self.rows[row].wants)
                if asked.ask in parts_of(ask)
            ]
            asked.start([place for place, _ in asking])
            if asked.ask.kind == "draw":
                for draw, (place, want) in zip(asked.draws, asking, strict=False):
                    assert isinstance(want, Draw)
                    row = int(rows[place])
                    position = int(flat.positions[row]) + want.ahead
                    self._alive.append(fill_draw(draw, want, self.history(want, row), position))

    def _run(self, number: int) -> None:
        """Run one op list, interrupted where rows replace a value."""
        ops, labels = self.compiled.lists[number], self.compiled.labels[number]
        start = 0
        for stop, name in (*self.compiled.stops[number], (len(ops), None)):
            if stop > start:
                part = (NativeOp * (stop - start)).from_buffer(ops, start * OP_BYTES)
                self._call(part, labels[start:stop])
            if name is not None:
                self._replace(name, number)
            start = stop

    def _call(self, ops: Any, labels: list[OpLabel]) -> None:
        if self.profile is None:
            self.plan.pool.run(ops, len(ops))
        else:
            self.profile.run(ops, labels)

    def _take_inputs(self) -> None:
        """Write what rows supply for the graph's inputs; ops pass it through `snap`."""
        for name in self.plan.graph.inputs:
            if name not in BY_ROW:
                for place, row in enumerate(self.which[0].tolist()):
                    self._put(name, place, self.rows[row].inputs[name])

    def _put(self, name: str, place: int, value: Any) -> None:
        type_ = self.plan.graph.values[name]
        buffer = self.compiled.row(name, place)
        if type_.dtype == "q16":
            write_records(buffer, value, type_.shape[-1])
        else:
            dtype = np.int32 if type_.dtype == "i32" else np.float32
            with np.errstate(over="ignore"):  # beyond float32 is infinite, and so a fault
                buffer.view(dtype)[:] = np.asarray(value).reshape(-1)

    def _replace(self, name: str, number: int) -> None:
        """Replace computed values by those that rows supply."""
        rows = self.which[number].tolist()
        giving = [(i, row) for i, row in enumerate(rows) if name in self.rows[row].inputs]
        for place, row in giving:
            self._put(name, place, self.rows[row].inputs[name])
        if giving and self.plan.graph.values[name].dtype == "f32":
            # All rows of the set: `snap` leaves computed ones as they are.
            self._call(self.compiled.snapping[name], [OpLabel("Admit")])

    def _collect(self, number: int) -> None:
        """Read the answers about a set's rows, and its faults."""
        rows = self.which[number]
        self.note_faults(self.plan.sets[number].faults, rows)
        if number:
            for flags, nodes in self.compiled.exact:
                self.note_faults(flags, rows, nodes)
        for asked in self.compiled.asked[number]:
            count = int(asked.count[0])
            looked_at = rows[asked.rows[:count]]
            self.note_faults(asked.faults, looked_at)
            for index, row in enumerate(looked_at.tolist()):
                self.answers[asked.ask, row] = asked.answer(index)
        late = self.compiled.late
        for place, row in enumerate(rows.tolist()):
            for want, ask in asked_by(self.rows[row].wants):
                if (value_of(want) in late) == bool(number):
                    self.brought[row][want] = self._answer(want, ask, row, place)

    def _answer(self, want: Want, ask: Ask | None, row: int, place: int) -> Any:
        if isinstance(want, Named | DrawnLogit):
            return self._named(value_of(want), row, place)
        first, *rest = (self.answers[part, row] for part in parts_of(ask))
        return (*first, *rest) if rest else first

    def _named(self, name: str, row: int, place: int) -> Any:
        """Copy a row's value, in the shape of one row."""
        if name in BY_ROW:
            return self.by_row(name, row)
        type_ = self.plan.graph.values[name]
        buffer = self.compiled.row(name, place)
        if type_.dtype == "q16":
            return read_records(buffer, type_.shape)
        dtype = np.int32 if type_.dtype == "i32" else np.float32
        value = buffer.view(dtype).reshape(type_.shape).copy()
        return value if type_.shape else value[()]
