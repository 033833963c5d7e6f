"""The work of a rank: executables, sequences and batches, by the commands of rank 0.

Rank 0 runs the same commands on itself, so that all ranks of a stage do the same in one order.
"""

from __future__ import annotations

import copy
import gc
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.backend import Backend, Batch, CompileOptions, ExportedState, Row
from cortiq.backend.compiling import CheckedWeights, compile_checked
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.errors import BackendError, CortiqError
from cortiq.ir import Program
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.soundness import check_finite
from cortiq.ranks.exchange import exchange_kernels
from cortiq.ranks.families import Key
from cortiq.ranks.group import World
from cortiq.ranks.local_program import LocalProgram, local_program
from cortiq.ranks.local_weights import LocalWeights
from cortiq.ranks.own_device import free_memory, own_device, use_gpu
from cortiq.ranks.shared_rows import no_rows
from cortiq.ranks.shared_state import with_parts
from cortiq.ranks.shares import Split

OpenWeights = Callable[[Any], Mapping[str, Weight]]
"""Opens the weights that a source describes, on this rank."""
FindBackend = Callable[[str], Backend]
SentRun = tuple[int, int, Sequence[Any], Sequence[Any], Mapping[str, Any]]
SentRow = tuple[int, int, Any, tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class StagePlan:
    """A program that the ranks of a stage compile.

    Attributes
    ----------
    members : ranks of the stage. backend : its name. source : what `OpenWeights` takes; None where
        rank 0 sends the weights. by_expert : whether experts are divided, not their columns.
    """

    program: Program
    members: tuple[int, ...]
    backend: str
    options: CompileOptions
    source: Any = None
    by_expert: bool = False


class Member:
    """A rank's executables and sequences, by the numbers that rank 0 gives them."""

    def __init__(self, world: World, find_backend: FindBackend, open_weights: OpenWeights) -> None:
        self.world, self._find, self._open = world, find_backend, open_weights
        self._executables: dict[int, Any] = {}
        self._splits: dict[int, Mapping[Key, Split]] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._states: dict[int, Any] = {}
        self._snapshots: dict[int, Any] = {}
        self._sent: dict[str, Weight] = {}
        self._exchanges = 0
        self._gpu = ""

    def out_of_step(self, error: BaseException) -> bool:
        """Say whether others may wait for this rank in an exchange, after a command raised this.

        Our own errors before the first exchange are about the command: every rank raises them.
        """
        ours = isinstance(error, CortiqError) and not self.world.lost
        return not ours or self._exchanges != self.world.exchanges

    def execute(self, command: tuple[Any, ...]) -> Any:
        """Execute a command: the name of a method, and its arguments."""
        name, *arguments = command
        if self._gpu:  # kernels are launched on a thread's own, and rank 0 has several threads
            use_gpu(self._gpu)
        self._exchanges = self.world.exchanges
        return getattr(self, f"do_{name}")(*arguments)

    def do_nothing(self) -> None:
        """Show that rank 0 is there."""

    def do_memory(self, backend: str, named: str | None) -> int:
        """Return the bytes that this rank may fill: its share of what its device has free."""
        device, sharing = own_device(self._find(backend).devices(), named, *self.world.here)
        return free_memory(device) // sharing

    def do_group(
        self, number: int, members: tuple[int, ...], backend: str, named: str | None
    ) -> str:
        """Make a group, by what connects its devices; return what there is to say of it."""
        found = self._find(backend)
        open_rows = getattr(found, "peer_rows", no_rows)
        return self.world.make_group(number, members, self._take(found, named), open_rows)

    def do_forget(self, gone: Collection[int]) -> None:
        """Release what this rank had together with others that are gone."""
        for number, members in list(self._members.items()):
            if not {*members}.isdisjoint(gone):
                self.do_close(number)
        self.world.forget(gone)

    def _take(self, backend: Backend, named: str | None) -> str:
        """Return this rank's device; every command uses it from now on if it is a GPU.

        Raises
        ------
        BackendError : models of this rank are on another one.
        """
        device, _ = own_device(backend.devices(), named, *self.world.here)
        if device.startswith("cuda"):
            if self._gpu not in ("", device) and self._executables:
                what = (
                    f"models of rank {self.world.rank} are on {self._gpu}, and this is for {device}"
                )
                raise BackendError(what, hint="Name one device for all models, or none.")
            self._gpu = device
            use_gpu(device)
        return device

    def do_weight(self, name: str, sent: tuple[str, tuple[int, int], Mapping[str, Any]]) -> None:
        """Take a weight, or this rank's part of it, for the next program."""
        layout, shape, parts = sent
        self._sent[name] = Weight(LAYOUTS[layout], shape, parts)

    def do_compile(self, number: int, plan: StagePlan) -> Any:
        """Compile this rank's share of a program; return its windows and rows of a batch."""
        local = self.share(plan)
        threads = plan.options.threads or self.world.threads
        peers = self.world.group(plan.members)
        backend = self._find(plan.backend)
        device = self._take(backend, plan.options.device)
        options = replace(plan.options, device=device, threads=threads, peers=peers, kept=None)
        names = tuple(local.program.weights)
        weights: Mapping[str, Weight] = self._sent
        if plan.source is not None:
            weights = LocalWeights(self._open(plan.source), names, local.cuts)
        tables = {name: weights[name] for name in local.tables}
        for name, table in tables.items():
            check_finite(table, name)
        backend = self.given_exchange(backend, plan, tables)
        checked = CheckedWeights(local.program, weights)
        made = compile_checked(backend, local.program, checked, options)
        self._sent = {}
        if len(plan.members) > 1 and made.asynchronous:
            made.close()
            what = f"the backend {backend.name!r} computes batches while others are read"
            raise BackendError(what, hint="It takes part in a layer split only: --split layer")
        self._executables[number] = made
        self._splits[number] = local.splits
        self._members[number] = plan.members
        return dict(made.windows), made.batch_rows, dict(made.provenance), made.takes_overlays

    def do_vary(self, number: int, plan: StagePlan | None) -> None:
        """Take a program with overlays, whose banks were sent, in place of the one before."""
        sent, self._sent = self._sent, {}
        if plan is None:
            self._executables[number].vary(None, {})
            return
        local = self.share(plan)
        weights: Mapping[str, Weight] = sent
        if plan.source is not None:
            names = tuple(name for name in local.program.weights if name not in sent)
            own: Any = LocalWeights(self._open(plan.source), names, local.cuts)
            weights = ChainMap(sent, own)
        splits = self._splits[number]
        if any(local.splits.get(key) != split for key, split in splits.items()):
            what = "these overlays need values whole that the ranks have divided"
            raise BackendError(what, hint="merge the adapter into the model: --lora PATH")
        # Rank 0 has asked the backend about the nodes; those of the exchange are the ranks' own.
        self._executables[number].inner.vary(local.program, weights)

    def share(self, plan: StagePlan) -> LocalProgram:
        """Return this rank's share of a plan's program: all of it, if the rank is alone."""
        if len(plan.members) == 1:
            return LocalProgram(plan.program, {}, {})
        rank = plan.members.index(self.world.rank)
        return local_program(plan.program, rank, len(plan.members), plan.by_expert)

    def given_exchange(
        self, backend: Backend, plan: StagePlan, tables: Mapping[str, Weight]
    ) -> Backend:
        """Return the backend with the kernels by which ranks exchange their parts."""
        if len(plan.members) == 1:
            return backend
        taking: Any = copy.copy(backend)
        if not hasattr(taking, "host_kernel"):
            what = f"the backend {backend.name!r} takes no kernel of the host"
            raise BackendError(what, hint="It takes part in a layer split only: --split layer")
        kernels = exchange_kernels(taking, self.world.group(plan.members), tables)
        taking.given = {**taking.given, **kernels}
        return taking

    def do_open(self, number: int, state: int, limit: int) -> None:
        """Open a sequence."""
        self._states[state] = self._executables[number].open(limit)

    def do_import(self, number: int, state: int, exported: ExportedState, limit: int) -> Any:
        """Open a sequence that continues this rank's share of an exported one."""
        self._states[state] = self._executables[number].import_(exported, limit)
        return self._lengths(number, state)

    def _lengths(self, number: int, state: int) -> dict[str, int]:
        entries = self._executables[number].program.graphs
        return {entry: self._states[state].length(entry) for entry in entries}

    def do_forward(
        self, number: int, entry: str, runs: Sequence[SentRun] | None, rows: Sequence[SentRow]
    ) -> Any:
        """Compute a batch; return outcomes and lengths by sequence, and what each row brought."""
        batch = Batch(self._rows(number, entry, runs, rows), entry)
        result = self._executables[number].forward(batch).result()
        known = {id(self._states[n]): n for n in _numbers(runs, rows)}
        outcomes = {known[id(state)]: outcome for state, outcome in result.outcomes.items()}
        lengths = {n: self._lengths(number, n) for n in outcomes}
        return outcomes, lengths, [tuple(row.items()) if row else () for row in result.rows]

    def _rows(
        self, number: int, entry: str, runs: Sequence[SentRun] | None, rows: Sequence[SentRow]
    ) -> Sequence[Row]:
        splits, place = self._splits[number], self._members[number].index(self.world.rank)
        if runs is not None:
            return RowRuns(
                [
                    RowRun(
                        self._states[n], position, tokens, wants,
                        with_parts(inputs, entry, splits, place, lead=1),
                    )
                    for n, position, tokens, wants, inputs in runs
                ]
            )  # fmt: skip
        return [
            Row(self._states[n], position, token, wants, with_parts(inputs, entry, splits, place))
            for n, position, token, wants, inputs in rows
        ]

    def do_reserve(self, state: int, rows: int) -> bool:
        """Make room for rows."""
        return self._states[state].reserve(rows)

    def do_rewind(self, number: int, state: int, length: int, entry: str) -> Any:
        """Drop rows; return the length reached, and all lengths."""
        reached = self._states[state].rewind(length, entry)
        return reached, self._lengths(number, state)

    def do_fork(self, number: int, state: int, other: int, length: int | None) -> Any:
        """Open a sequence that starts as another one."""
        self._states[other] = self._states[state].fork(length)
        return self._lengths(number, other)

    def do_snapshot(self, state: int, snapshot: int) -> None:
        """Copy what a sequence holds."""
        self._snapshots[snapshot] = self._states[state].snapshot()

    def do_restore(self, number: int, state: int, snapshot: int) -> Any:
        """Restore a sequence."""
        self._states[state].restore(self._snapshots[snapshot])
        return self._lengths(number, state)

    def do_drop(self, snapshots: Sequence[int]) -> None:
        """Forget copies."""
        for snapshot in snapshots:
            self._snapshots.pop(snapshot, None)

    def do_export(self, state: int) -> ExportedState:
        """Return this rank's share of a sequence."""
        return self._states[state].export()

    def do_release(self, state: int) -> None:
        """Give a sequence's memory back."""
        self._states.pop(state).release()

    def do_state_bytes(self, number: int, rows: int) -> int:
        """Return the memory that this rank's share of a sequence takes."""
        return self._executables[number].state_bytes(rows)

    def do_free_bytes(self, number: int) -> int:
        """Return the memory that this rank has left for sequences."""
        return self._executables[number].free_bytes()

    def do_close(self, number: int) -> None:
        """Release a program's weights and sequences."""
        executable = self._executables.pop(number, None)
        if executable is not None:
            executable.close()
        self._splits.pop(number, None)
        self._members.pop(number, None)
        gc.collect()


def _numbers(runs: Sequence[SentRun] | None, rows: Sequence[SentRow]) -> set[int]:
    return {one[0] for one in (rows if runs is None else runs)}
