"""One batch on its way through a plan: rows in, values of every node, wants out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cortiq.backend import Batch, Row, Want
from cortiq.backend.admission import value_of
from cortiq.backend.executable import Accepted
from cortiq.backend.plan import Step
from cortiq.numerics.contract import TILE
from cortiq_triton import wise
from cortiq_triton.answers import Answers, packed, resolve
from cortiq_triton.call import Call, Shared
from cortiq_triton.plan import Plan
from cortiq_triton.rows import Rows, empty_rows
from cortiq_triton.rowset import RowBuffer, Segment, arrays, row_sets
from cortiq_triton.state import TritonState


class Run:
    """One batch; rows are numbered among the accepted ones.

    Attributes
    ----------
    tail : rows that want a value which no state depends on; such values have only these rows.
    supplied : values that some rows bring themselves.
    """

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Sequence[Accepted[TritonState]],
        shared: Shared,
        drawn: torch.Tensor | None = None,
    ) -> None:
        self.plan, self.shared, self.entry, self.drawn = plan, shared, batch.entry, drawn
        self.order = [index for sequence in accepted for index in sequence.indices]
        self.rows: list[Row] = [batch.rows[index] for index in self.order]
        self.tokens = [token for sequence in accepted for token in sequence.tokens]
        self.segments, start = [], 0
        for sequence in accepted:
            position = batch.rows[sequence.indices.start].position
            stop = start + len(sequence.indices)
            self.segments.append(Segment(sequence.state, start, stop, position))
            start = stop
        known = plan.always | set(plan.graph.inputs)
        alike = {row.wants for row in self.rows}
        names = {wants: frozenset(map(value_of, wants)) for wants in alike}
        late = {wants: found - known for wants, found in names.items()}
        self.wants = [names[row.wants] for row in self.rows]
        self.late = [late[row.wants] for row in self.rows]
        self.tail = [at for at, names in enumerate(self.late) if names]
        self.mixed = len({self.late[at] for at in self.tail}) > 1
        self.supplied = frozenset(name for row in self.rows for name in row.inputs)
        self.values: dict[str, Any] = {}

    def fill(self, buffer: RowBuffer, sources: Sequence[int], pages: int = 0) -> dict[str, Any]:
        """Write what is known of the rows to the device."""
        parts = arrays(self.segments, self.tokens, sources, self.tail, pages)
        buffer.fill(parts)
        return parts

    def place(self, buffer: RowBuffer, sources: Sequence[int] = (), pages: int = 0) -> None:
        """The same, and name the places. With `pages` the run may be launched again, filled anew
        with rows that have at most so many.
        """
        parts = self.fill(buffer, sources, pages)
        there = buffer.views(parts)
        last = pages * TILE - 1 if pages else None
        sets = row_sets(self.segments, self.tail, parts, there, self.shared.device, last)
        (self.all, self.some), self.sources = sets, there["sources"]
        self.ids = self.ids_given = there["tokens"]
        self.tail_rows = there["tail"].long()

    def compute(self) -> None:
        """Run every step that is needed."""
        self.place(RowBuffer(self.shared.device))
        self._steps()

    def launch(self) -> None:
        """Every step and every answer, with nothing of the host's: `packed` is what was found."""
        if self.drawn is not None:
            self.ids = resolve(self.all.count, self.ids_given, self.sources, self.drawn)
        self._steps()
        self.packed = packed(self, Answers(self))
        if self.drawn is not None:
            self.drawn[: self.all.count] = self.packed[:, 1]

    def _steps(self) -> None:
        device = self.shared.device
        self.faults = torch.zeros(len(self.rows), dtype=torch.int32, device=device)
        self.tail_faults = torch.zeros(len(self.tail), dtype=torch.int32, device=device)
        for name in self.plan.graph.inputs:
            self.values[name] = self._input(name)
        steps = [step for step in self._selected() if self.tail or not step.late]
        for step, spent in zip(steps, self._spent(steps), strict=True):
            self._run(step)
            for name in spent:
                del self.values[name]
        if len(self.tail) == len(self.rows):
            self.faults |= self.tail_faults
        elif self.tail:
            self.faults[self.tail_rows] |= self.tail_faults

    def _selected(self) -> list[Step]:
        """The steps of this batch: fused, unless rows differ in what their faults concern."""
        wanted = frozenset[str]().union(*self.wants)
        if self.mixed:
            return self.plan.select(wanted)
        return self.plan.fused(wanted, self.supplied)

    def _spent(self, steps: Sequence[Step]) -> list[list[str]]:
        """For each step the values that nobody reads after it."""
        seen = frozenset[str]().union(*self.wants)
        spent: list[list[str]] = []
        for step in reversed(steps):
            names = dict.fromkeys((*step.node.inputs, *step.node.outputs))
            spent.append([name for name in names if name not in seen and name != "position"])
            seen |= names.keys()
        return spent[::-1]

    def _run(self, step: Step) -> None:
        node, late = step.node, step.late
        inputs = [self._value(name, late) for name in node.inputs]
        faults = self.tail_faults if late else self.faults
        if late and self.mixed:
            faults = torch.zeros_like(faults)
        rows = self.some if late else self.all
        call = Call(node.op, step.weights, node.slots, rows, faults, self.shared)
        result = step.kernel(call, *inputs)
        outputs = result if len(node.outputs) != 1 else (result,)
        for name, value in zip(node.outputs, outputs, strict=True):
            self.values[name] = self._overridden(name, value, late, faults)
        if late and self.mixed:
            concerned = [node.name in self.plan.needs(self.wants[at]) for at in self.tail]
            there = torch.tensor(concerned, dtype=torch.int32, device=faults.device)
            self.tail_faults |= faults * there

    def _value(self, name: str, late: bool) -> Any:
        if name == "position":
            return (self.some if late else self.all).positions
        value = self.values[name]
        if not late or not self.has_all_rows(name) or len(self.tail) == len(self.rows):
            return value
        return value.take(self.tail_rows) if isinstance(value, Rows) else value[self.tail_rows]

    def has_all_rows(self, name: str) -> bool:
        """Whether a value exists for all rows, not for those of the tail only."""
        return name in self.plan.always or name in self.plan.graph.inputs

    def _input(self, name: str) -> Any:
        if name == "token":
            return self.ids
        if name == "position":
            return self.all.positions
        return self._supplied(name, [row.inputs[name] for row in self.rows], self.faults)

    def _supplied(self, name: str, given: list[Any], faults: torch.Tensor) -> Any:
        """Values that rows bring, as a kernel would have left them."""
        kind = self.plan.graph.values[name]
        if kind.dtype == "q16":
            q, e = (np.stack([getattr(value, part) for value in given]) for part in "qe")
            return _quantised(q, e, self.shared.device)
        stacked = np.stack([np.asarray(value).reshape(kind.shape) for value in given])
        if kind.dtype == "i32":
            return torch.tensor(stacked.astype(np.int32), device=self.shared.device)
        with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
            values = torch.tensor(stacked.astype(np.float32), device=self.shared.device)
        return wise.apply(wise.admit, values, faults)

    def _overridden(self, name: str, value: Any, late: bool, faults: torch.Tensor) -> Any:
        """Values that a row supplies itself take the place of what the node computed."""
        if name not in self.supplied:
            return value
        rows = self.tail if late else range(len(self.rows))
        given = {at: self.rows[index].inputs[name] for at, index in enumerate(rows)
                 if name in self.rows[index].inputs}  # fmt: skip
        value = value.clone()  # it may be a view of the node's input
        for at, supplied in given.items():
            value[at] = self._supplied(name, [supplied], faults[at : at + 1])[0]
        return value

    def history(self, at: int) -> list[int]:
        """Every id the row's sequence was fed, up to and including the row."""
        segment = next(s for s in self.segments if s.start <= at < s.stop)
        before = segment.state.tokens[: segment.position]
        return [*before, *self.tokens[segment.start : at + 1]]

    def brought(self) -> list[dict[Want, Any] | None]:
        """What each row asked for; None for rows of a sequence with a fault."""
        answers = Answers(self)
        return answers.read()


def _quantised(q: np.ndarray, e: np.ndarray, device: str) -> Rows:
    rows = empty_rows(e.shape, q.shape[-1], device)
    whole = np.zeros((*e.shape, rows.high.shape[-1]), np.int32)
    whole[..., : q.shape[-1]] = q
    high = (whole + 128) >> 8
    rows.high.copy_(torch.from_numpy(high.astype(np.int8)))
    rows.low.copy_(torch.from_numpy((whole - (high << 8)).astype(np.int8)))
    rows.e.copy_(torch.from_numpy(e.astype(np.int32)))
    rows.sums.copy_(torch.from_numpy(whole.reshape(*e.shape, -1, 16).sum(axis=-1)))
    return rows
