"""A backend on several devices: programs are cut as a split says, and compiled on the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.backend import Backend, CompileOptions, Device, Executable, Support, Versions
from cortiq.errors import OptionError
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight
from cortiq.placement.place import place_split
from cortiq.ranks.driver import Driver
from cortiq.ranks.layer_split import cuts_at, even_cuts
from cortiq.ranks.replicas import ReplicasExecutable
from cortiq.ranks.stage import StageBackend


@dataclass(frozen=True)
class DeviceSplit:
    """A division of a program among ranks.

    Attributes
    ----------
    stages : seats of ranks that compute a stretch of layers together, each its heads and columns of
        it; one stage is a tensor split, one rank a stage a layer split.
    points : first layer of each stage but the first; none divides them evenly.
    by_expert : whether a stage divides experts, rather than each one's columns.
    replicas : whether each stage has the whole program instead, and computes sequences of its own.
    prefill : how many of these, the first, compute prompts only.
    """

    stages: tuple[tuple[int, ...], ...]
    points: tuple[int, ...] = ()
    by_expert: bool = False
    replicas: bool = False
    prefill: int = 0

    @staticmethod
    def of(kind: str, ranks: int, points: Sequence[int] = (), stages: int = 0) -> DeviceSplit:
        """Return the split of a kind.

        Parameters
        ----------
        kind : "tensor", "expert" (that, with whole experts), "layer", or "auto": layers between
            hosts (`stages`), tensors within one.
        stages : hosts, among which ranks are divided evenly.

        Raises
        ------
        OptionError : there are points without a layer split.
        """
        count = {"tensor": 1, "expert": 1, "layer": ranks}.get(kind, max(1, stages))
        if ranks % count:
            what = f"is {kind!r}, and {count} hosts do not divide {ranks} ranks"
            raise OptionError("split", what, hint="--split tensor, or --split layer")
        if points and count == 1:
            raise OptionError("split_at", "needs a layer split", hint="--split layer")
        each = ranks // count
        made = (tuple(range(n * each, (n + 1) * each)) for n in range(count))
        return DeviceSplit(tuple(made), tuple(points), kind == "expert")

    @staticmethod
    def of_replicas(kind: str, ranks: int, replicas: int, prefill: int = 0) -> DeviceSplit:
        """Return the split of ranks into replicas, within each of which tensors are divided.

        Raises
        ------
        OptionError : the numbers do not go together, or the kind divides layers.
        """
        if ranks % replicas:
            what = f"is {replicas}, which does not divide {ranks} devices"
            raise OptionError("replicas", what, hint="Each replica has as many devices.")
        if prefill >= replicas:
            what = f"is {prefill} of {replicas} replicas, so that none is left for answers"
            raise OptionError("prefill_replicas", what, hint="replicas=2, --replicas 2")
        each = ranks // replicas
        if kind == "layer" and each > 1:
            what = "is 'layer', and replicas divide tensors or experts only"
            raise OptionError("split", what, hint="--split tensor")
        made = (tuple(range(n * each, (n + 1) * each)) for n in range(replicas))
        return DeviceSplit(tuple(made), (), kind == "expert", True, prefill)


class RanksBackend:
    """A backend whose programs several ranks compute; see `cortiq.backend.Backend`.

    Parameters
    ----------
    inner : the backend of every rank. source : how each rank opens a model's weights itself; None
        sends them from rank 0.
    """

    def __init__(
        self, driver: Driver, inner: Backend, split: DeviceSplit, source: Any = None
    ) -> None:
        self.driver, self.inner, self.split, self.source = driver, inner, split, source
        self.name, self.priority = inner.name, inner.priority
        self.versions: Versions = inner.versions
        self._stages: Sequence[StageBackend] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines about how the devices of what was compiled exchange values, if they do not as they
        could.
        """
        return tuple(dict.fromkeys(stage.note for stage in self._stages if stage.note))

    def devices(self) -> Sequence[Device]:
        """Return the devices of a rank."""
        return self.inner.devices()

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Say whether the ranks execute a node."""
        return self.inner.supports(node, graph, program)

    def for_tower(self) -> RanksBackend:
        """Return the backend of the tower that this one's model sees with.

        The ranks of the first stage compute it together: an image is seen before its rows enter the
        text's layers, one image at a time. Rank 0, which opened it, sends the weights.
        """
        first = DeviceSplit(self.split.stages[:1], by_expert=self.split.by_expert)
        return RanksBackend(self.driver, self.inner, first)

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> Executable:
        """Compile a program on the ranks.

        Raises
        ------
        DeviceMemoryError : its layers do not fit the ranks' memory.
        """
        options = replace(options, kept=None)
        stages = self._stages = [
            StageBackend(self.driver, self.inner, members, self.source, self.split.by_expert)
            for members in self._members()
        ]
        if self.split.replicas:
            copies = [stage.compile(program, weights, options) for stage in stages]
            return ReplicasExecutable(copies, self.split.prefill)
        if len(stages) == 1:
            return stages[0].compile(program, weights, options)
        cuts = self._cuts(program, options.device)
        assignments = [(stage, options) for stage in stages[: len(cuts) + 1]]
        return place_split(assignments, program, weights, cuts)

    def _members(self) -> list[tuple[int, ...]]:
        """Return the ranks that sit in each stage's seats."""
        return [tuple(self.driver.seats[seat] for seat in stage) for stage in self.split.stages]

    def _cuts(self, program: Program, device: str | None) -> Sequence[str]:
        if self.split.points:
            return cuts_at(program, self.split.points, len(self.split.stages))
        free = self.driver.ask(self.driver.seats, ("memory", self.name, device))
        budgets = [sum(free[seat] for seat in stage) for stage in self.split.stages]
        return even_cuts(program, budgets)
