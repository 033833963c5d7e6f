"""One batch on its way through a plan: rows in, values of every node, wants out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cortiq.backend import Batch
from cortiq.backend.columns import Brought
from cortiq.backend.executable import Accepted
from cortiq.backend.last_keys import highest_key, last_encoded_of
from cortiq.backend.outputs import Specimens
from cortiq.backend.plan import Step
from cortiq.backend.walk import Group, Walk
from cortiq.numerics.contract import TILE
from cortiq_triton import elementwise, layer_launch
from cortiq_triton.answers import Answers, resolve
from cortiq_triton.call import LaunchCall, Shared
from cortiq_triton.device_rows import DeviceRows, uploaded_together
from cortiq_triton.fetched import Fetched, FetchedColumns
from cortiq_triton.given_rows import PLACE
from cortiq_triton.plan import Plan
from cortiq_triton.rows import Rows, empty_rows
from cortiq_triton.rowset import GIVEN, Ids, RowBuffer, RowSet, arrays, row_sets, uploaded
from cortiq_triton.state import TritonState


class Run(Walk[TritonState]):
    """One batch, which may be computed again once its rows were filled anew.

    Attributes
    ----------
    row_sets : all rows, and those of the tail, as kernels read them. there : their arrays.
    """

    plan: Plan
    row_sets: tuple[RowSet, RowSet]
    there: Mapping[str, torch.Tensor]

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Sequence[Accepted[TritonState]],
        shared: Shared,
        drawn: torch.Tensor | None = None,
    ) -> None:
        super().__init__(plan, batch, accepted)
        self.shared, self.drawn = shared, drawn

    def fill(self, buffer: RowBuffer, sources: Ids, pages: int = 0) -> dict[str, Any]:
        """Upload row metadata; with `pages`, pad page tables to so many."""
        parts = self.parts(sources, pages)
        buffer.fill(parts)
        return parts

    def parts(self, sources: Ids, pages: int) -> dict[str, np.ndarray]:
        """Row metadata as arrays."""
        groups = self.shared.table_groups
        return arrays(self.segments, self.tokens, sources, self.tail_places, pages, groups)

    def place(
        self, buffer: RowBuffer, sources: Ids = (), pages: int = 0, fixed: bool = True
    ) -> dict[str, Any]:
        """Upload row metadata, keep its places, and return it; with `pages`, so that launches
        captured from this can be replayed after `fill`, unless what positions there are is not
        `fixed`.
        """
        parts = self.fill(buffer, sources, pages)
        self.there, last = buffer.views(parts), pages * TILE - 1 if pages and fixed else None
        if last is None and (names := last_encoded_of(self.plan.graph)):
            last = highest_key(parts["positions"], self.rows, names)
        known = (self.tail_places, parts, self.there, self.shared.device, last)
        self.row_sets = row_sets(self.segments, *known)
        self.ids, self.tail_rows = self.there["tokens"], self.there["tail"].long()
        return parts

    def compute(self) -> list[Sequence[Brought] | None]:  # type: ignore[override]
        """Run every step that is needed; what each sequence brings, None for one with a fault."""
        self.place(RowBuffer(self.shared.device))
        self.walk()
        return Answers(self).fetch(range(len(self.rows)), self.all.faults).read()

    def launch(self) -> None:
        """Every step, with nothing of the host's: ids that the step before drew are read there."""
        if self.drawn is not None:
            known = self.there["tokens"], self.there["sources"], self.drawn
            self.ids = resolve(len(self.rows), *known)
        self.walk()

    def fetch(self, places: Sequence[int]) -> Fetched | FetchedColumns:
        """Launch every step and every answer, and start bringing these to the host.

        Parameters
        ----------
        places : where in the batch the rows are; what they draw is kept there for the next batch.
        """
        assert self.drawn is not None
        known = self.there["tokens"], self.there["sources"], self.drawn
        self.ids = resolve(len(self.rows), *known)
        self.walk()
        answers = Answers(self)
        answers.keep(places, self.drawn)
        return answers.fetch(places, self.shared.peers.worst(self.all.faults))

    def start(self) -> None:
        """Make the groups of rows, over what was uploaded."""
        for rows in self.row_sets:
            rows.forget_groups()
        places, tail = range(len(self.rows)), self.tail_places
        self.all = self.tail = Group(places, None, self.segments, self.flags(len(places)))
        if len(tail) < len(places):
            self.tail = Group(tail, self.tail_rows, (), self.flags(len(tail)))
            self.tail.values["position"] = self.row_sets[1].positions

    def steps(self) -> Sequence[tuple[Step, tuple[str, ...]]]:
        """The steps of this batch: fused, unless rows differ in what their faults concern."""
        if self.mixed:
            return super().steps()
        alone = all(rows.count == 1 for rows in self.row_sets)
        alone = alone and self.row_sets[0].most_tiles(0) <= layer_launch.MOST_TILES
        return self.plan.fused(self.wanted, frozenset(self.supplied), alone)

    def call(self, step: Step, group: Group, faults: torch.Tensor) -> Any:
        """Make the call of a step's kernel."""
        rows = self.row_sets[group is not self.all]
        return LaunchCall(step.node.op, step.weights, step.node.slots, rows, faults, self.shared)

    def outputs(self, step: Step, call: Any, inputs: list[Any], rows: int) -> Sequence[Any]:
        """Launch a step: the backend's own kernels, whose errors, torch's, others wait for.

        What a package's kernel returns is held against the graph.
        """
        if type(step.node.op) in self.plan.given:
            return super().outputs(step, call, inputs, rows)
        result = step.kernel(call, *inputs)
        return result if len(step.node.outputs) != 1 else (result,)

    def specimens(self) -> Specimens:
        """Types of the arrays of rows; no package's kernel returns quantised ones."""
        return Specimens(torch.float32, torch.int32, (torch.int8, torch.int32))

    def input(self, name: str) -> Any:
        """A value that every row has or supplies."""
        if name == "token":
            return self.ids
        if (there := self.there.get(GIVEN + name)) is not None:  # data, as ids are
            places = self.there.get(GIVEN + name + PLACE)
            return there if places is None else self.snap(_picked(there, places), self.all.faults)
        return self.row_sets[0].positions if name == "position" else super().input(name)

    def admitted(self, name: str, given: Sequence[Any], faults: torch.Tensor) -> torch.Tensor:
        """Return values that rows supply; held ones are as a kernel left them."""
        held = all(type(part) is DeviceRows for part in given)
        there = self.supplied_there(name, given)
        return there if held or there.dtype != torch.float32 else self.snap(there, faults)

    def _replaced(self, name: str, value: Any, group: Group, faults: torch.Tensor) -> torch.Tensor:
        """Replace what the node computed by the values that rows supply."""
        there = self.there.get(GIVEN + name)
        if there is None:
            return super()._replaced(name, value, group, faults)
        places, flags = self.there[GIVEN + name + PLACE], self.flags(len(group.places))
        new, mine = self.snap(_picked(there, places), flags), places >= 0
        faults |= flags * mine
        return torch.where(mine.view(-1, *[1] * (new.ndim - 1)), new, value)

    def supplied_there(self, name: str, given: Sequence[Any]) -> torch.Tensor:
        """Return values that rows supply on the device, as they are."""
        if all(type(part) is DeviceRows for part in given):
            parts = [part.values.to(self.shared.device) for part in given]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        numbers = np.int32 if self.plan.graph.values[name].dtype == "i32" else np.float32
        with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
            return self.together(given, numbers)

    def together(self, parts: Sequence[Any], kind: Any) -> torch.Tensor:
        """Return arrays one after another on the device."""
        return uploaded_together([*map(np.asarray, parts)], kind, self.shared.device)

    def array(self, host: np.ndarray) -> torch.Tensor:
        """A copy on the device."""
        return uploaded(host, self.shared.device)

    def host(self, array: torch.Tensor) -> np.ndarray:
        """The values, which wait for what is under way."""
        return array.cpu().numpy()

    def flags(self, count: int) -> torch.Tensor:
        """A flag for each of so many rows, none set."""
        return torch.zeros(count, dtype=torch.int32, device=self.shared.device)

    def pick(self, value: Any, index: Any) -> Any:
        """Rows of a value, quantised or not."""
        return value.take(index) if isinstance(value, Rows) else value[index]

    def snap(self, x: torch.Tensor, faults: torch.Tensor) -> torch.Tensor:
        """As every kernel ends."""
        return elementwise.apply(elementwise.admit, x, faults)

    def quantised(self, q: np.ndarray, e: np.ndarray) -> Rows:
        """Rows as planes, with their sums."""
        rows = empty_rows(e.shape, q.shape[-1], self.shared.device)
        whole = np.zeros((*e.shape, rows.high.shape[-1]), np.int32)
        whole[..., : q.shape[-1]] = q
        high = (whole + 128) >> 8
        rows.high.copy_(torch.from_numpy(high.astype(np.int8)))
        rows.low.copy_(torch.from_numpy((whole - (high << 8)).astype(np.int8)))
        rows.e.copy_(torch.from_numpy(e.astype(np.int32)))
        rows.sums.copy_(torch.from_numpy(whole.reshape(*e.shape, -1, 16).sum(axis=-1)))
        return rows


def _picked(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the rows of a table of floats that rows supply; any row where one supplies none."""
    return table.view(torch.float32).index_select(0, places.clamp(min=0))
