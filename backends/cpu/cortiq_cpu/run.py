"""A batch computed by a plan: chunks of rows, native calls, requested outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from cortiq.backend import Batch, Draw, DrawnLogit, Named, Want
from cortiq.backend.admission import BY_ROW
from cortiq.backend.columns import Brought, Columns
from cortiq.backend.executable import Accepted
from cortiq.backend.flat_rows import FlatBatch
from cortiq.backend.held_rows import joined
from cortiq.backend.last_keys import chunks_of
from cortiq.backend.requests import Ask, asked_by
from cortiq.backend.row_runs import RowRuns
from cortiq.backend.wants import value_of
from cortiq_cpu.native import NativeOp
from cortiq_cpu.plan import CompiledOps, CpuPlan
from cortiq_cpu.profile import OpLabel, OpProfile
from cortiq_cpu.quantised_rows import read_records, write_records
from cortiq_cpu.state import CpuState
from cortiq_cpu.wants import fill_draw, parts_of

OP_BYTES = ctypes.sizeof(NativeOp)
NUMBERS = {"i32": np.int32, "f32": np.float32}


class CpuRun(FlatBatch[CpuPlan]):
    """One batch.

    Attributes
    ----------
    which : rows that the trunk set (0) and the tail set (1) hold now.
    columns : where all rows want the same arrays, those of each piece, by want.
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
        self.columns: dict[Want, list[np.ndarray]] = {want: [] for want in self.alike}
        self._alive: list[Any] = []

    def compute(self) -> list[Sequence[Brought] | None]:
        """Run all chunks and return the outputs of each sequence's rows."""
        chunks = list(chunks_of(self.given, self.plan.until, self.plan.sets[0].capacity))
        self.plan.hold(max(stop - start for start, stop in chunks))
        self.compiled = self.plan.compiled(self.request)
        for start, stop in chunks:
            self._chunk(np.arange(start, stop))
        return self.outcome()

    def _chunk(self, chunk: np.ndarray) -> None:
        """Compute some rows: all through the trunk, those with late wants through the tail."""
        late = self.late_rows(chunk)
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
        rows = self.which[0]
        given = self.given[int(rows[0]) : int(rows[-1]) + 1]
        for name in [name for name in self.plan.graph.inputs if name not in BY_ROW]:
            if isinstance(given, RowRuns):
                numbers = self._numbers(name, len(rows))
                parts = [np.asarray(run.inputs[name]) for run in given.runs]
                with np.errstate(over="ignore"):  # beyond float32 is infinite, and so a fault
                    numbers[:] = joined(parts).reshape(numbers.shape)
            else:
                self._put(name, list(enumerate(rows.tolist())))

    def _numbers(self, name: str, count: int) -> np.ndarray:
        """Return the first rows of a value's buffer as numbers: [count, width]."""
        dtype = NUMBERS[self.plan.graph.values[name].dtype]
        return self.compiled.buffer(name, count).view(dtype)

    def _put(self, name: str, places: Sequence[tuple[int, int]]) -> None:
        """Write what rows supply for a value: pairs of a place in the set and a row."""
        type_ = self.plan.graph.values[name]
        count = 1 + max((place for place, _ in places), default=0)
        if type_.dtype == "q16":
            buffer = self.compiled.buffer(name, count)
            for place, row in places:
                value: Any = self.rows[row].inputs[name]
                write_records(buffer[place], value, type_.shape[-1])
            return
        numbers = self._numbers(name, count)
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and so a fault
            for place, row in places:
                numbers[place] = np.asarray(self.rows[row].inputs[name]).reshape(-1)

    def _replace(self, name: str, number: int) -> None:
        """Replace computed values by those that rows supply."""
        rows = self.which[number].tolist()
        giving = [(i, row) for i, row in enumerate(rows) if name in self.rows[row].inputs]
        self._put(name, giving)
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
        for want in self.alike:
            if (value_of(want) in self.compiled.late) == bool(number):
                self.columns[want].append(self._column(value_of(want), rows))
        if not self.alike:
            self._collect_rows(number, rows)

    def _column(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Copy a value of all rows of a set, each in the shape of one row."""
        if name in BY_ROW:
            return (self.flat.tokens if name == "token" else self.flat.positions)[rows]
        numbers = self._numbers(name, len(rows))
        return numbers.reshape(len(rows), *self.plan.graph.values[name].shape).copy()

    def outcome(self) -> list[Sequence[Brought] | None]:
        """Return what the rows of each sequence bring, None for one with a fault."""
        if not self.alike:
            return super().outcome()
        columns = Columns({want: joined(parts) for want, parts in self.columns.items()})
        spans = enumerate(pairwise(self.flat.starts.tolist()))
        return [None if n in self.failed else columns[start:stop] for n, (start, stop) in spans]

    def _collect_rows(self, number: int, rows: np.ndarray) -> None:
        """Read what each row of a set brings."""
        asked_of: dict[tuple[Want, ...], list[tuple[Want, Ask | None]]] = {}
        for place, row in enumerate(rows.tolist()):
            wants = self.rows[row].wants
            if wants not in asked_of:
                asked_of[wants] = self._answered_by(wants, number)
            for want, ask in asked_of[wants]:
                self.brought[row][want] = self._answer(want, ask, row, place)

    def _answered_by(self, wants: tuple[Want, ...], number: int) -> list[tuple[Want, Ask | None]]:
        """Return the wants that a set's rows answer."""
        late = self.compiled.late
        return [(w, ask) for w, ask in asked_by(wants) if (value_of(w) in late) == bool(number)]

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
        value = buffer.view(NUMBERS[type_.dtype]).reshape(type_.shape).copy()
        return value if type_.shape else value[()]
