"""Rows of a decoding step on the host: who they are, and the arrays that a captured shape reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cortiq.backend import LATE, Argmax, Batch, Draw, Row, Want
from cortiq.backend.answers import drawing_want
from cortiq.backend.executable import Accepted
from cortiq.backend.requests import penalises
from cortiq_triton.given_rows import given_names
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import Ids
from cortiq_triton.run import Run
from cortiq_triton.state import TritonState
from cortiq_triton.step_answers import answerable, names_of


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
    sources : the row of the batch before that draws a row's id, or −1. given : what rows supply, as
        `given_rows` has it.
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
    what a step can answer. All name the same values, of floats, and supply the same ones.
    """
    found = []
    for row in batch.rows:
        known = facts.of(row)
        if not known.answerable:
            return None
        found.append(known)
    if not found:
        return None
    named, values = found[0].named, plan.graph.values
    if any(known.named != named for known in found):
        return None
    if any(name not in values or values[name].dtype != "f32" for name in named):
        return None
    if given_names([row.inputs for row in batch.rows], plan, every=True) is None:
        return None
    states = {id(row.state) for row in batch.rows}
    return found if len(states) == len(found) else None


class StepRun(Run):
    """A run of steps whose rows supply values, which are data like ids and positions.

    Attributes
    ----------
    given : of the first step; see `given_rows`.
    """

    given: Mapping[str, np.ndarray] = MappingProxyType({})

    def parts(self, sources: Ids, pages: int) -> dict[str, np.ndarray]:
        """Row metadata as arrays, and what rows supply."""
        return {**super().parts(sources, pages), **self.given}


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
        parts |= rows.given
        unread = [0] * lacking
        parts["tokens"][:] = rows.tokens + unread
        parts["sources"][:] = rows.sources + [-1] * lacking
        parts["positions"][:] = rows.positions + unread
        parts["tail_positions"][:] = parts["positions"][parts["tail"]]
        return parts
