"""One batch on its way through a plan: rows in, values of every node, wants out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cortiq.backend import Argmax, Batch, Digest, Draw, Named, Row, Top, Want
from cortiq.backend.admission import value_of
from cortiq.backend.executable import Accepted
from cortiq.numerics import digest, sampling
from cortiq.numerics.contract import OutOfDomainError
from cortiq.numerics.quantise import Quantised
from cortiq_torch.arithmetic import Rows, snap
from cortiq_torch.call import Call, Segment
from cortiq_torch.plan import Plan, Step
from cortiq_torch.state import TorchState


class Run:
    """One batch; rows are numbered among the accepted ones.

    Attributes
    ----------
    tail : rows that want a value which no state depends on; such values have only these rows.
    """

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Sequence[Accepted[TorchState]],
        device: str,
    ) -> None:
        self.plan, self.device = plan, device
        self.order = [index for sequence in accepted for index in sequence.indices]
        self.rows: list[Row] = [batch.rows[index] for index in self.order]
        self.tokens = [token for sequence in accepted for token in sequence.tokens]
        self.segments, start = [], 0
        for sequence in accepted:
            positions = [batch.rows[index].position for index in sequence.indices]
            stop = start + len(positions)
            self.segments.append(Segment(sequence.state, start, stop, positions))
            start = stop
        self.wants = [frozenset(value_of(want) for want in row.wants) for row in self.rows]
        known = plan.always | set(plan.graph.inputs)
        self.tail = [at for at, names in enumerate(self.wants) if names - known]
        self.faults = torch.zeros(start, dtype=torch.bool, device=device)
        self.values: dict[str, Any] = {}

    def compute(self) -> None:
        """Run every step that is needed, and bring the fault flags to the host."""
        for name in self.plan.graph.inputs:
            self.values[name] = self._input(name)
        self.tail_rows = torch.tensor(self.tail, dtype=torch.int64, device=self.device)
        for step in self.plan.select(frozenset().union(*self.wants)):
            if self.tail or not step.wanted_only:
                self._run(step)
        self.flags = self.faults.cpu().numpy()

    def _run(self, step: Step) -> None:
        node = step.node
        rows = self.tail if step.wanted_only else list(range(len(self.rows)))
        inputs = [self._value(name, step.wanted_only) for name in node.inputs]
        faults = torch.zeros(len(rows), dtype=torch.bool, device=self.device)
        segments = _restricted(self.segments, rows) if step.wanted_only else self.segments
        result = step.kernel(Call(node.op, step.weights, node.slots, segments, faults), *inputs)
        outputs = result if len(node.outputs) != 1 else (result,)
        for name, value in zip(node.outputs, outputs, strict=True):
            self.values[name] = self._overridden(name, value, rows, faults)
        if step.wanted_only:
            concerned = [node.name in self.plan.needs(self.wants[at]) for at in rows]
            self.faults[self.tail_rows] |= faults & torch.tensor(concerned, device=self.device)
        else:
            self.faults |= faults

    def _value(self, name: str, wanted_only: bool) -> Any:
        value = self.values[name]
        if not wanted_only or not self._has_all_rows(name):
            return value
        if isinstance(value, Rows):
            return Rows(value.q[self.tail_rows], value.e[self.tail_rows])
        return value[self.tail_rows]

    def _has_all_rows(self, name: str) -> bool:
        return name in self.plan.always or name in self.plan.graph.inputs

    def _input(self, name: str) -> Any:
        if name == "token":
            return torch.tensor(self.tokens, dtype=torch.int32, device=self.device)
        if name == "position":
            positions = [row.position for row in self.rows]
            return torch.tensor(positions, dtype=torch.int32, device=self.device)
        return self._supplied(name, [row.inputs[name] for row in self.rows], self.faults)

    def _supplied(self, name: str, given: list[Any], faults: Tensor) -> Any:
        """Values that rows bring, as a kernel would have left them."""
        kind = self.plan.graph.values[name]
        if kind.dtype == "q16":
            q, e = (np.stack([getattr(value, part) for value in given]) for part in "qe")
            return Rows(self._uploaded(q).double(), self._uploaded(e))
        stacked = np.stack([np.asarray(value).reshape(kind.shape) for value in given])
        if kind.dtype == "i32":
            return self._uploaded(stacked.astype(np.int32))
        with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
            return snap(self._uploaded(stacked.astype(np.float32)), faults)

    def _uploaded(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self.device)

    def _overridden(self, name: str, value: Any, rows: Any, faults: Tensor) -> Any:
        """Values that a row supplies itself take the place of what the node computed."""
        given = {at: self.rows[index].inputs[name] for at, index in enumerate(rows)
                 if name in self.rows[index].inputs}  # fmt: skip
        if given:
            value = value.clone()  # it may be a view of the node's input
        for at, supplied in given.items():
            value[at] = self._supplied(name, [supplied], faults[at : at + 1])[0]
        return value

    def failed(self, state: TorchState) -> bool:
        """Whether any row of the sequence met a fault."""
        segment = next(s for s in self.segments if s.state is state)
        return bool(self.flags[segment.start : segment.stop].any())

    def answers(self, index: int) -> dict[Want, Any]:
        """What the batch's row `index` asked for, by the contract's own functions on the host."""
        at = self.order.index(index)
        try:
            return {want: self._answer(want, at) for want in self.rows[at].wants}
        except OutOfDomainError:  # of a draw: adjusted logits left the domain
            self.flags[at] = True
            return {}

    def _answer(self, want: Want, at: int) -> Any:
        value = self._row(value_of(want), at)
        if isinstance(want, Named):
            return value
        if isinstance(want, Digest):
            return digest.digest(value)
        if isinstance(want, Argmax):
            return int(sampling.argmax(value))
        if isinstance(want, Top):
            return (*sampling.top(value, want.count), sampling.log_sum_exp(value))
        assert isinstance(want, Draw)
        position = self.rows[at].position + want.ahead
        history = self._history(at) if want.history is None else want.history
        return sampling.draw(value, want.sampling, history, position, want.choice, mask=want.mask)

    def _row(self, name: str, at: int) -> Any:
        value = self.values[name]
        at = at if self._has_all_rows(name) else self.tail.index(at)
        if isinstance(value, Rows):
            q, e = value.q[at].int(), value.e[at]
            return Quantised(q.cpu().numpy(), e.cpu().numpy())
        return value[at].cpu().numpy()

    def _history(self, at: int) -> list[int]:
        """Every id the row's sequence was fed, up to and including the row."""
        segment = next(s for s in self.segments if s.start <= at < s.stop)
        before = segment.state.tokens[: segment.positions[0]]
        return [*before, *self.tokens[segment.start : at + 1]]


def _restricted(segments: list[Segment], rows: list[int]) -> list[Segment]:
    """The segments of some of the rows, numbered among these."""
    found, start = [], 0
    for segment in segments:
        kept = [at for at in rows if segment.start <= at < segment.stop]
        if kept:
            positions = [segment.positions[at - segment.start] for at in kept]
            found.append(Segment(segment.state, start, start + len(kept), positions))
            start += len(kept)
    return found
