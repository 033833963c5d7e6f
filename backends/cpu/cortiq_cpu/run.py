"""A batch on its way through a plan: chunks of rows in, native calls, wants out."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cortiq.backend import Batch, Draw, Named, Row, State, Top, Want
from cortiq.backend.admission import BY_ROW, chunks_of, value_of
from cortiq.backend.executable import Accepted
from cortiq.ir import Type
from cortiq.numerics.quantise import Quantised
from cortiq_cpu.native import Op, library
from cortiq_cpu.plan import Plan
from cortiq_cpu.profile import Label, Profile
from cortiq_cpu.rows import Flat
from cortiq_cpu.wants import Ask, asked_by, fill_draw, penalises

OP_BYTES = ctypes.sizeof(Op)


class Run:
    """One batch; `compute` returns the sequences that failed.

    Attributes
    ----------
    flat : the rows of all accepted sequences, which all other row numbers count in.
    which : rows that the trunk set (0) and the tail set (1) hold now.
    """

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Sequence[Accepted],
        brought: list[Mapping[Want, Any]],
        profile: Profile | None = None,
    ) -> None:
        self.plan, self.entry, self.brought, self.profile = plan, batch.entry, brought, profile
        self.flat = Flat(accepted, batch.entry)
        self.rows: list[Row] = [batch.rows[index] for index in self.flat.indices]
        self.request = plan.request_of(self.rows)
        self.compiled = plan.compiled(self.request)
        self.which: list[np.ndarray] = [np.zeros(0, np.int64)] * 2
        self.failed: set[State] = set()
        self.answers: dict[tuple[Ask, int], Any] = {}
        self._alive: list[Any] = []

    def compute(self) -> set[State]:
        """Run all chunks."""
        size = self.plan.sets[0].capacity
        for start, stop in chunks_of(self.rows, self.plan.until, size):
            self._chunk(np.arange(start, stop))
        return self.failed

    def _chunk(self, chunk: np.ndarray) -> None:
        """Some rows: all of them through the trunk, those with late wants through the tail."""
        late = [row for row in chunk.tolist() if self._has_late_wants(row)]
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

    def _has_late_wants(self, row: int) -> bool:
        late = self.compiled.late
        return bool(late) and any(value_of(want) in late for want in self.rows[row].wants)

    def _fill(self, number: int, rows: np.ndarray) -> None:
        """Let a set hold these rows, and tell its answering ops who asks."""
        flat, row_set = self.flat, self.plan.sets[number]
        self.which[number] = rows
        row_set.fill(flat.tokens[rows], flat.positions[rows], flat.stretches(rows))
        if number:
            row_set.source[: len(rows)] = rows - self.which[0][0]
            for flags, _ in self.compiled.exact:
                flags[: len(rows)] = 0
        supplied = {name: self._supplied(name, rows) for name in self.plan.angles.supplied}
        self.plan.angles.fill(row_set, supplied)
        for asked in self.compiled.asked[number]:
            asking = [
                (place, want)
                for place, row in enumerate(rows.tolist())
                for want, asks in asked_by(self.rows[row].wants)
                if asked.ask in asks
            ]
            asked.start([place for place, _ in asking])
            if asked.ask.kind == "draw":
                for draw, (place, want) in zip(asked.draws, asking, strict=False):
                    assert isinstance(want, Draw)
                    self._fill_draw(draw, want, int(rows[place]))

    def _supplied(self, name: str, rows: np.ndarray) -> np.ndarray:
        """What rows give for an input of integers: [rows, …]."""
        return np.stack([np.asarray(self.rows[row].inputs[name], np.int64) for row in rows])

    def _fill_draw(self, draw: Any, want: Draw, row: int) -> None:
        history: np.ndarray | None = None
        if penalises(want):
            own = want.history
            history = self.flat.history(row, self.entry) if own is None else np.array(own, np.int32)
        position = int(self.flat.positions[row]) + want.ahead
        self._alive.append(fill_draw(draw, want, history, position))

    def _run(self, number: int) -> None:
        """One op list, interrupted where rows replace a value."""
        ops, labels = self.compiled.lists[number], self.compiled.labels[number]
        start = 0
        for stop, name in (*self.compiled.stops[number], (len(ops), None)):
            if stop > start:
                part = (Op * (stop - start)).from_buffer(ops, start * OP_BYTES)
                self._call(part, labels[start:stop])
            if name is not None:
                self._replace(name, number)
            start = stop

    def _call(self, ops: Any, labels: list[Label]) -> None:
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
            _write_records(buffer, value, type_.shape[-1])
        else:
            dtype = np.int32 if type_.dtype == "i32" else np.float32
            with np.errstate(over="ignore"):  # beyond float32 is infinite, and so a fault
                buffer.view(dtype)[:] = np.asarray(value).reshape(-1)

    def _replace(self, name: str, number: int) -> None:
        """Let rows that supply a computed value replace what was computed."""
        rows = self.which[number].tolist()
        giving = [(i, row) for i, row in enumerate(rows) if name in self.rows[row].inputs]
        for place, row in giving:
            self._put(name, place, self.rows[row].inputs[name])
        if giving and self.plan.graph.values[name].dtype == "f32":
            # All rows of the set: `snap` leaves computed ones as they are.
            self._call(self.compiled.snapping[name], [Label("Admit")])

    def _collect(self, number: int) -> None:
        """Read the answers about a set's rows, and its faults."""
        rows = self.which[number]
        self._note_faults(self.plan.sets[number].faults[: len(rows)], rows)
        if number:
            self._note_exact_faults(rows)
        for asked in self.compiled.asked[number]:
            count = int(asked.count[0])
            looked_at = rows[asked.rows[:count]]
            self._note_faults(asked.faults[:count], looked_at)
            for index, row in enumerate(looked_at.tolist()):
                self.answers[asked.ask, row] = asked.answer(index)
        late = self.compiled.late
        for place, row in enumerate(rows.tolist()):
            wants = self.rows[row].wants
            if wants:
                mine = {
                    want: self._answer(want, asks, row, place)
                    for want, asks in asked_by(wants)
                    if (value_of(want) in late) == bool(number)
                }
                index = self.flat.indices[row]
                self.brought[index] = {**self.brought[index], **mine}

    def _note_exact_faults(self, rows: np.ndarray) -> None:
        """Count faults of an op for the rows whose wants depend on it."""
        for flags, names in self.compiled.exact:
            for place in np.flatnonzero(flags[: len(rows)]).tolist():
                row = int(rows[place])
                if names & self.plan.needs(self.rows[row].wants):
                    self.failed.add(self.flat.accepted[self.flat.owner[row]].state)

    def _note_faults(self, faults: np.ndarray, rows: np.ndarray) -> None:
        if faults.any():
            owners = set(self.flat.owner[rows[faults != 0]].tolist())
            self.failed |= {self.flat.accepted[owner].state for owner in owners}

    def _answer(self, want: Want, asks: tuple[Ask, ...], row: int, place: int) -> Any:
        if isinstance(want, Named):
            return self._named(want.name, row, place)
        if isinstance(want, Top):
            ids, values = self.answers[asks[0], row]
            return ids, values, self.answers[asks[1], row]
        return self.answers[asks[0], row]

    def _named(self, name: str, row: int, place: int) -> Any:
        """A copy of a row's value, in the shape of one row."""
        if name in BY_ROW:
            source = self.flat.tokens if name == "token" else self.flat.positions
            return source[row]
        type_ = self.plan.graph.values[name]
        buffer = self.compiled.row(name, place)
        if type_.dtype == "q16":
            return _read_records(buffer, type_)
        dtype = np.int32 if type_.dtype == "i32" else np.float32
        value = buffer.view(dtype).reshape(type_.shape).copy()
        return value if type_.shape else value[()]


def _records(buffer: np.ndarray, width: int) -> np.ndarray:
    """A buffer's records, one a line: uint8 [records, bytes]."""
    return buffer.reshape(-1, library().cortiq_record_bytes(width))


def _exponents(records: np.ndarray, width: int) -> np.ndarray:
    at = library().cortiq_record_exponent_at(width)
    return records[:, at : at + 4].view(np.int32)[:, 0]


def _write_records(buffer: np.ndarray, value: Quantised, width: int) -> None:
    records = _records(buffer, width)
    records[:] = 0
    records[:, : 2 * width].view(np.int16)[:] = np.asarray(value.q).reshape(-1, width)
    _exponents(records, width)[:] = np.asarray(value.e).reshape(-1)
    for record in records:
        library().cortiq_record_finish(record.ctypes.data, width)


def _read_records(buffer: np.ndarray, type_: Type) -> Quantised:
    *lead, width = type_.shape
    records = _records(buffer, width)
    q = records[:, : 2 * width].view(np.int16).astype(np.int32)
    return Quantised(q.reshape(type_.shape), _exponents(records, width).reshape(lead).copy()[()])
