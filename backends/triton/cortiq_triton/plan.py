"""Plan of a batch: values asked for, and the state that every row must leave behind."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from cortiq.backend import Row
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.plan import KernelPlan as Steps
from cortiq.backend.plan import Prepared, Step, used_up
from cortiq.backend.rotary import reach, supplied_positions, turns_of
from cortiq.ir import Graph, Op, ops
from cortiq.numerics.layouts import Weight
from cortiq_triton import layer_launch
from cortiq_triton.attend import factors_of, steep_on
from cortiq_triton.current_device import current
from cortiq_triton.decoder_layers import in_one_launch
from cortiq_triton.fuse import Launches
from cortiq_triton.kernels import KERNELS, MATRICES, prepare
from cortiq_triton.peer_rows import with_exchanges
from cortiq_triton.rotary import Angles
from cortiq_triton.steps import Joined
from cortiq_triton.weights import first_rows


def weights_of(weights: Mapping[str, Weight], device: str) -> Prepared:
    """Weights of all entry graphs, uploaded once each for each form they are needed in."""

    def made(op: Op, role: str, weight: Weight, name: str) -> Any:
        """The first rows of a matrix that is there already are a part of that."""
        whole = next((n for n, w in weights.items() if w is weight.whole), None)
        there = prepared.made.get((whole, form(op, role))) if whole is not None else None
        if there is not None and isinstance(op, MATRICES):
            return first_rows(there, weight.shape[0])
        with current(device):  # several threads make weights
            return prepare(op, role, weight, name, device)

    def form(op: Op, role: str) -> Hashable:
        return isinstance(op, MATRICES), getattr(op, "offset", 0), getattr(op, "form", "")

    prepared = Prepared(weights, made, form)
    return prepared


class Plan(Steps):
    """One entry graph, ready to run.

    Parameters
    ----------
    before : a plan over the same weights, whose matrices that are one are so here.

    Attributes
    ----------
    given : kernels of other packages, by primitive.
    joined : weights that are rows of one; None where nothing is to be fused.
    tables : rotary tables of its nodes. supplied : inputs that are positions of other axes.
    """

    def __init__(
        self,
        graph: Graph,
        prepared: Prepared,
        angles: Angles,
        fuses: bool = True,
        given: GivenKernels = NO_KERNELS,
        before: Plan | None = None,
    ) -> None:
        theirs = {op: kernel.function for op, kernel in given.items()}
        super().__init__(graph, prepared.bound(graph), {**KERNELS, **theirs})
        self.given = given
        joined = None if before is None else before.joined
        self.joined: Joined | None = Joined(self.steps, joined) if fuses else None
        for node in graph.nodes:
            if isinstance(node.op, ops.Attend):
                factors_of(node.op.scale, node.op.soft_cap)
                steep_on(node.op.slopes, angles.device)
        turns, self.angles = turns_of(graph.nodes), angles
        self.tables = {turn.table for turn in turns}
        self.supplied = supplied_positions(turns)
        self.fused = lru_cache(maxsize=256)(self._fused)

    def _fused(
        self, wanted: frozenset[str], supplied: frozenset[str], alone: bool = False
    ) -> Sequence[tuple[Step, tuple[str, ...]]]:
        """Steps for rows that all want these values and supply those, fused where they can be.

        alone : there is one row, which wants late values: its layers may be one launch.
        """
        chosen = self.select(wanted)
        if self.joined is None:
            return chosen
        steps = [step for step, _ in chosen]
        exposed = wanted | supplied
        fused = Launches(steps, self.graph, exposed, supplied, self.given).fuse(self.joined)
        fused = with_exchanges(fused, exposed)
        if alone and layer_launch.available():
            fused = in_one_launch(fused, exposed)
        return used_up(fused, wanted)

    def prepare(self, positions: int) -> None:
        """Precompute rotary tables for so many positions."""
        self.angles.reach(self.tables, positions)

    def reach(self, rows: Sequence[Row]) -> int:
        """Positions that tables must have for what rows supply."""
        return reach(rows, self.supplied)
