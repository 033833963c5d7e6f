"""Rows of a decoding step on the host: who they are, and the arrays that a captured shape reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from cortiq.backend import LATE, Argmax, Batch, Draw, Row, Want
from cortiq.backend.admission import BY_ROW
from cortiq.backend.answers import drawing_want
from cortiq.backend.executable import Accepted
from cortiq.backend.requests import penalises
from cortiq.backend.walk import Group
from cortiq.ir import Graph
from cortiq.ir.overlays import OVERLAY, OVERLAY_INDEX, OVERLAY_ROW, overlay_number
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import GIVEN, Ids, given_arrays
from cortiq_triton.run import Run
from cortiq_triton.state import TritonState
from cortiq_triton.step_answers import answerable, names_of


def known_inputs(graph: Graph) -> bool:
    """Whether the host knows all that rows of a step supply: numbers that do not depend on ids,
    which the device draws, as rows of overlays' tables do.
    """
    values = graph.values
    numbers = all(values[name].dtype != "q16" for name in graph.inputs)
    return numbers and OVERLAY_ROW not in graph.inputs


class WantFacts(NamedTuple):
    """Facts of a row's wants that a step needs.

    Attributes
    ----------
    answerable : whether a step can answer them. drawing : the want that draws. looks : whether it
        depends on the ids so far. is_late : whether its mask comes later. checked : the wants
        without that mask. named : values asked for by name.
    """

    wants: tuple[Want, ...]
    answerable: bool
    drawing: Draw | Argmax | None
    looks: bool
    is_late: bool
    checked: tuple[Want, ...]
    named: tuple[str, ...]


class KnownFacts:
    """Facts of wants by identity: those of a request are looked at once, not once a step."""

    MOST = 1024

    def __init__(self) -> None:
        self._held: dict[int, WantFacts] = {}

    def of(self, row: Row) -> WantFacts:
        """Return the facts of a row's wants."""
        known = self._held.get(id(row.wants))
        if known is not None and known.wants is row.wants:
            return known
        drawing = drawing_want(row.wants)
        looks = isinstance(drawing, Draw) and penalises(drawing)
        is_late, checked = False, row.wants
        if isinstance(drawing, Draw) and drawing.mask is LATE:
            bare = replace(drawing, mask=None)
            is_late, checked = True, tuple(bare if w is drawing else w for w in row.wants)
        named = names_of(row.wants)
        facts = WantFacts(row.wants, answerable(row), drawing, looks, is_late, checked, named)
        if not getattr(drawing, "mask", None):  # masks have kilobytes, and change
            if len(self._held) >= self.MOST:
                self._held.clear()
            self._held[id(row.wants)] = facts
        return facts


class StepRows(NamedTuple):
    """The rows of a step, each of another sequence.

    Attributes
    ----------
    sources : the row of the batch before that draws a row's id, or −1. given : what rows supply in
        place of values or as inputs, by name: float32 or int32 [rows, …].
    """

    states: list[TritonState]
    positions: list[int]
    tokens: list[int]
    sources: list[int]
    facts: list[WantFacts]
    given: Mapping[str, np.ndarray] = MappingProxyType({})

    def looking(self) -> list[int]:
        """Return the rows whose draws depend on the ids so far."""
        return [at for at, facts in enumerate(self.facts) if facts.looks]

    def late(self) -> list[int]:
        """Return the rows whose draws wait for their masks."""
        return [at for at, facts in enumerate(self.facts) if facts.is_late]

    def accepted(self) -> list[Accepted[Any]]:
        """Return the rows as a run takes them."""
        pairs = enumerate(zip(self.states, self.tokens, strict=True))
        return [Accepted(state, range(at, at + 1), [token]) for at, (state, token) in pairs]


def plain_rows(batch: Batch, facts: KnownFacts, plan: Plan) -> list[WantFacts] | None:
    """Return the facts of a batch's rows; None unless each is another sequence's and wants only
    what a step can answer. Values that rows name or supply must be the same ones, of floats, but
    for inputs of the graph.
    """
    found = []
    for row in batch.rows:
        known = facts.of(row)
        if not known.answerable:
            return None
        found.append(known)
    if not found:
        return None
    named, given = found[0].named, batch.rows[0].inputs.keys()
    if any(known.named != named for known in found):
        return None
    if any(row.inputs.keys() != given for row in batch.rows):
        return None
    values, floats = plan.graph.values, [*named, *(given - {*plan.graph.inputs})]
    if any(name not in values or values[name].dtype != "f32" for name in floats):
        return None
    if any(name not in given for name in plan.graph.inputs if name not in BY_ROW):
        return None
    states = {id(row.state) for row in batch.rows}
    return found if len(states) == len(found) else None


def given_values(batch: Batch, plan: Plan) -> dict[str, np.ndarray]:
    """Return what rows supply, float32 or int32 [rows, …] by name."""
    found: dict[str, np.ndarray] = {}
    names = batch.rows[0].inputs  # all rows have these
    overlays = [overlay_number(row.inputs) for row in batch.rows] if OVERLAY in names else [None]
    if None not in overlays:
        numbers = np.array(overlays, np.int32)
        return {OVERLAY: numbers, OVERLAY_INDEX: numbers[:, None]}
    for name in names:
        kind = plan.graph.values[name]
        values = [np.asarray(row.inputs[name]).reshape(kind.shape) for row in batch.rows]
        with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
            found[name] = np.stack(values).astype(np.int32 if kind.dtype == "i32" else np.float32)
    return found


class StepRun(Run):
    """A run of steps whose rows supply values, which are data like ids and positions.

    Attributes
    ----------
    given : of the first step, float32 or int32 [rows, …] by name.
    """

    given: Mapping[str, np.ndarray] = MappingProxyType({})

    def parts(self, sources: Ids, pages: int) -> dict[str, np.ndarray]:
        """Row metadata as arrays, and what rows supply."""
        return super().parts(sources, pages) | given_arrays(self.given, len(self.rows))

    def _replaced(self, name: str, value: Any, group: Group, faults: torch.Tensor) -> torch.Tensor:
        """Return what all rows supply in place of a value."""
        return self.snap(self.there[GIVEN + name].view(torch.float32), faults)


class StepArrays:
    """The arrays of a shape's rows; a step writes what is other than in the one before.

    Attributes
    ----------
    parts : as `rowset.arrays` made them for the first step of the shape.
    """

    def __init__(self, parts: dict[str, np.ndarray], states: Sequence[Any]) -> None:
        self.parts = parts
        self._pages = [state.page_addresses for state in states]

    def update(self, rows: StepRows, filler: Any) -> dict[str, np.ndarray]:
        """Write the rows of a step, filled up by rows of a sequence that nobody reads."""
        parts, count = self.parts, len(rows.states)
        lacking = len(self._pages) - count
        for at, state in enumerate([*rows.states, *[filler] * lacking]):
            addresses = state.page_addresses
            if addresses is not self._pages[at]:  # these are made anew whenever one changes
                self._pages[at] = addresses
                lines, width = parts["table"][:, at], addresses.shape[1]
                lines[:, :width] = addresses
                lines[:, width:] = 0
                parts["fixed"][at] = state.block_address
        parts |= given_arrays(rows.given, len(self._pages))
        unread = [0] * lacking
        parts["tokens"][:] = rows.tokens + unread
        parts["sources"][:] = rows.sources + [-1] * lacking
        parts["positions"][:] = rows.positions + unread
        parts["tail_positions"][:] = parts["positions"][parts["tail"]]
        return parts
