"""Batches whose rows choose overlays (`cortiq.ir.overlays`): a second plan of an entry graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from cortiq.backend.admission import token_of
from cortiq.backend.batch import Batch, Row
from cortiq.backend.known_wants import KnownWants
from cortiq.backend.row_runs import RowRun, runs_or_rows
from cortiq.errors import BackendError, RequestError
from cortiq.ir import Graph, Program
from cortiq.ir.overlays import OVERLAY, OVERLAY_ROW
from cortiq.numerics.layouts import Weight

NO_OVERLAYS = "the backend computes no overlays"


class HasGraph(Protocol):
    """A compiled entry graph."""

    @property
    def graph(self) -> Graph:
        """The graph."""


P = TypeVar("P", bound=HasGraph)


def has_overlays(batch: Batch) -> bool:
    """Return whether the rows of a batch say which overlay they choose: all do, or none."""
    rows: Sequence[RowRun | Row] = runs_or_rows(batch.rows)
    return len(rows) > 0 and OVERLAY in rows[0].inputs


class VariedPlans(Generic[P]):
    """Mixin of an executable: plans with overlays beside those without.

    A batch in which no row chooses an overlay is computed by the plans that were there before.

    Attributes
    ----------
    plans : of each entry graph. varied : those with overlays, of the trunk; mostly none.
    """

    plans: Mapping[str, P]
    known_wants: Mapping[str, KnownWants]
    drawn: Sequence[int | None]
    vocabulary: int

    def __init__(self) -> None:
        self.varied: Mapping[str, P] = {}
        self._varied_wants = KnownWants()

    def varied_plans(self, program: Program, weights: Mapping[str, Weight]) -> Mapping[str, P]:
        """Compile the trunk of a program with overlays, over the slots and weights that are there.

        Raises
        ------
        BackendError : the backend cannot.
        """
        raise BackendError(NO_OVERLAYS, hint="merge the adapter when the model is loaded: --lora")

    def settle(self) -> None:
        """Wait for what is under way."""
        return

    @property
    def takes_overlays(self) -> bool:
        """Whether it can `vary`."""
        return type(self).varied_plans is not VariedPlans.varied_plans

    def vary(self, program: Program | None, weights: Mapping[str, Weight]) -> None:
        """Take a program with overlays in place of the one before; None has none any more."""
        self.settle()
        self.varied, self._varied_wants = {}, KnownWants()
        if program is not None:
            self.varied = self.varied_plans(program, weights)

    @property
    def every_plan(self) -> list[P]:
        """The plans of all entry graphs, those with overlays among them."""
        return [*self.plans.values(), *self.varied.values()]

    def plan_of(self, batch: Batch) -> P:
        """Return the plan that computes a batch."""
        entry = batch.entry
        plans = self.varied if entry in self.varied and has_overlays(batch) else self.plans
        if entry not in plans:
            there = ", ".join(self.plans) or "none: it was closed"
            raise RequestError(f"no entry graph is named {entry!r}", hint=f"There are {there}")
        return plans[entry]

    def wants_of(self, plan: P, entry: str) -> KnownWants:
        """Return the wants that a plan is known to answer."""
        return self._varied_wants if plan is self.varied.get(entry) else self.known_wants[entry]

    def prepared(self, plan: P, batch: Batch) -> Batch:
        """Return the batch with what its rows need to look up tables of overlays."""
        if OVERLAY_ROW not in plan.graph.inputs:
            return batch
        rows = [self._with_table_row(row) for row in batch.rows]
        return replace(batch, rows=rows)

    def _with_table_row(self, row: Row) -> Row:
        token = token_of(row, self.drawn)
        if not 0 <= token < self.vocabulary:  # it is refused for that
            return row
        number = int(row.inputs.get(OVERLAY, 0))
        place = np.array(number * self.table_rows + token, np.int32)
        given = {**row.inputs, OVERLAY_ROW: place}
        return Row(row.state, row.position, row.token, row.wants, given)

    @property
    def table_rows(self) -> int:
        """Rows of the trunk's table of tokens."""
        graph = self.plans[next(iter(self.varied))].graph  # the other may have banks alone
        tables: list[Any] = [n.op for n in graph.nodes if n.inputs[:1] == ("token",)]
        return max(int(getattr(op, "vocab", 0)) for op in tables)
