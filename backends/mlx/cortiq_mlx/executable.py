"""A program bound to its weights on a device; see `cortiq.backend.Executable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from cortiq.backend import Batch, CompileOptions
from cortiq.backend.executable import Accepted, Brought
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.stored import StoredExecutable
from cortiq.ir import Program, Slot, primitives_of
from cortiq.numerics.layouts import Weight
from cortiq_mlx import custom
from cortiq_mlx.library import DEVICES, description, mx, version
from cortiq_mlx.plan import Plan, prepared
from cortiq_mlx.run import Run
from cortiq_mlx.state import MlxState
from cortiq_mlx.stores import Store, open_store
from cortiq_mlx.trial import confirmed

EARLY_POSITIONS = 4096
"""Positions whose rotary angles are known when a sequence is opened; the rest when they come."""


class MlxExecutable(StoredExecutable[MlxState, Plan]):
    """A program on one device.

    Attributes
    ----------
    own : names of our own kernels that are in use on the device (`trial`).
    """

    trims: ClassVar[bool] = True

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        device: str,
        name: str,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        self.device, self.own = device, confirmed(device)
        graphs, known = primitives_of(program).graphs, prepared(weights)
        with mx.stream(DEVICES[device]):
            plans = {n: Plan(graph, known, given) for n, graph in graphs.items()}
        super().__init__(program, options, plans)
        nodes = [node for graph in program.graphs.values() for node in graph.nodes]
        theirs = {op: kernel.owner for op, kernel in given.items()}
        self.placement = {node.name: theirs.get(type(node.op), name) for node in nodes}

    @property
    def provenance(self) -> Mapping[str, str]:
        """What computes here, for receipts: MLX and the device."""
        facts = {"mlx": version(), "device": description(self.device)}
        return {**facts, "kernels": " ".join(sorted(self.own))} if self.own else facts

    def new_state(self, limit: int) -> MlxState:
        """An empty sequence of at most `limit` positions."""
        for plan in self.plans.values():
            plan.angles.grow(min(limit, EARLY_POSITIONS))
        return MlxState(self, limit)

    def new_store(self, name: str, slot: Slot) -> Store:
        """An empty store for the slot of this name."""
        page, poison = self.options.page_rows, bool(self.options.extra.get("poison"))
        return open_store(slot, page, poison, self.extent(name))

    def device_bytes(self) -> int:
        """Memory the device has free; Apple's is the host's."""
        if self.device == "cpu" or mx.metal.is_available():
            return super().device_bytes()
        total = mx.device_info().get("memory_size")
        return super().device_bytes() if total is None else int(total) - mx.get_active_memory()

    def refusal(self, plan: Plan, batch: Batch, sequence: Accepted[MlxState]) -> str | None:
        """Why a sequence's rows cannot be computed; None also has the angles of positions made."""
        with mx.stream(DEVICES[self.device]):
            reason = super().refusal(plan, batch, sequence)
        if reason is None:
            indices = sequence.indices
            plan.angles.grow(plan.reach(batch.rows[indices.start : indices.stop]))
        return reason

    def compute(
        self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[MlxState]]
    ) -> list[list[Brought] | None]:
        """What the rows of each sequence bring, None for one with a fault."""
        with mx.stream(DEVICES[self.device]), custom.using(self.own):
            return Run(plan, batch, accepted).compute()
