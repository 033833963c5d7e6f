"""Passes of encoders as captured graphs: every row supplies values and wants the same ones.

A tower's layers are some 300 launches, which take the host 15 to 45 ms; the device computes one
image in less. A shape is the rows of each sequence and what else the host looks at; one that comes
again is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cortiq.backend import Batch
from cortiq.backend.executable import Accepted
from cortiq.backend.last_keys import highest_key, last_encoded_of
from cortiq.backend.row_runs import RowRuns, positions_of
from cortiq_triton.activation_memory import row_bytes
from cortiq_triton.answers import Answers
from cortiq_triton.call import Shared
from cortiq_triton.device_rows import DeviceRows
from cortiq_triton.fetched import Fetched, FetchedColumns
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.run import Run
from cortiq_triton.shapes import ShapeCache
from cortiq_triton.state import TritonState
from cortiq_triton.under_way import Owner

MOST_MET = 256
"""Shapes that are remembered as met once."""


class EncoderRun(Run):
    """A run that computes other batches of its shape, once these are where its kernels read.

    Attributes
    ----------
    kept : what rows supply, by name.
    """

    def __init__(
        self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[TritonState]], shared: Shared,
        drawn: torch.Tensor | None,
    ) -> None:  # fmt: skip
        super().__init__(plan, batch, accepted, shared, drawn)
        self.kept: dict[str, torch.Tensor] = {}

    def supplied_there(self, name: str, given: Sequence[Any]) -> torch.Tensor:
        """Return the memory of what rows supply; at first with the values of the first batch."""
        if name not in self.kept:  # a copy: what is held is another batch's
            self.kept[name] = super().supplied_there(name, given).clone()
        return self.kept[name]

    def refill(self, run: Run) -> None:
        """Copy what another batch's rows supply to where that of these was."""
        for name, there in self.kept.items():
            there.copy_(run.supplied_there(name, run.supplied_parts(name)))

    def values_of(self, name: str) -> Any:
        """Return a copy of a value, whose memory the next batch of this shape writes."""
        return super().values_of(name).clone()

    def nbytes(self) -> int:
        """Return the bytes of what its rows supply and want."""
        held = [*self.kept.values(), *map(super().values_of, self.wanted)]
        return sum(part.nbytes for part in held)


class EncoderShape(NamedTuple):
    """A shape of batches: their run, their rows on the device, and the launches or the graph."""

    run: EncoderRun
    buffer: RowBuffer
    replay: Callable[[], None]


class EncoderPasses:
    """Captured passes of an executable.

    Parameters
    ----------
    captured : makes a graph of launches, or gives them back where that fails.
    """

    def __init__(
        self, owner: Owner, captured: Callable[[Callable[[], None]], Callable[[], None]]
    ) -> None:
        self.shapes = ShapeCache[EncoderShape](owner.device)
        self._owner, self._captured = owner, captured
        self._version = 0
        self._met: set[Hashable] = set()

    def launch(
        self, run: Run, batch: Batch, accepted: Sequence[Accepted[TritonState]],
        sources: np.ndarray, pages: int,
    ) -> Fetched | FetchedColumns | None:  # fmt: skip
        """Launch the rows of a run; None if they are no encoder's, or of a shape that has to come
        again, or if memory is short of a second place for them.
        """
        version = self._owner.shared.angles.version
        if self._version != version:  # tables of angles were made anew: old graphs read old ones
            self.shapes.clear()
            self._version = version
        key = _key(run, batch.entry, pages)
        if key is None or self._owner.shared.peers.size > 1:
            return None
        shape = self.shapes.use(key)
        if shape is not None:
            shape.buffer.fill(run.parts(sources, pages))
            shape.run.refill(run)
            shape.replay()
            return _fetched(shape.run)
        if self._is_first(key) or not self._has_room(run):
            return None
        made = EncoderRun(run.plan, batch, accepted, run.shared, run.drawn)
        buffer = RowBuffer(self._owner.device)
        made.place(buffer, sources, pages, fixed=False)
        made.launch()
        fetched = _fetched(made)  # before a graph names other memory for the values
        size = made.nbytes()
        self.shapes.keep(key, EncoderShape(made, buffer, self._captured(made.launch)), size)
        return fetched

    def _is_first(self, key: Hashable) -> bool:
        """Whether a shape is met for the first time: a graph takes as long as several launches."""
        if key in self._met:
            return False
        if len(self._met) >= MOST_MET:
            self._met.clear()
        self._met.add(key)
        return True

    def _has_room(self, run: Run) -> bool:
        """Whether memory is free for all values of the rows, which graphs have for themselves."""
        free = self._owner.device_bytes()
        return len(run.rows) * row_bytes(run.plan) <= free


def _key(run: Run, entry: str, pages: int) -> Hashable | None:
    """Return all that launches depend on but the rows' values; None for rows of another kind."""
    graph = run.plan.graph
    if not (run.alike and run.supplied and isinstance(run.rows, RowRuns)):
        return None
    if not run.supplied <= set(graph.inputs):  # some replace what a node computes
        return None
    cuts = tuple((part.start, part.stop, part.positions[0]) for part in run.segments)
    names = last_encoded_of(graph)
    last = highest_key(positions_of(run.rows), run.rows, names)
    held = tuple(name for name in graph.inputs if name in run.supplied and _is_held(run, name))
    return entry, run.alike, run.held, cuts, last, held, pages


def _is_held(run: Run, name: str) -> bool:
    """Whether what rows supply stays on the device, and is as a kernel left it."""
    return all(type(part) is DeviceRows for part in run.supplied_parts(name))


def _fetched(run: EncoderRun) -> Fetched | FetchedColumns:
    """Start bringing what the rows want."""
    return Answers(run).fetch(range(len(run.rows)), run.all.faults)
