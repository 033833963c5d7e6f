"""The reference behind a log: backend, executable and sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cortiq.backend import (
    Batch,
    BatchResult,
    CompileOptions,
    Device,
    Drawn,
    Executable,
    ExportedState,
    Finished,
    OptionalCapabilities,
    Row,
    State,
    Support,
    Supported,
    Versions,
)
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight
from cortiq_null.log import Log
from cortiq_reference.backend import ReferenceBackend


class NullBackend:
    """Wraps the reference.

    Parameters
    ----------
    log : file of the log; without it `CORTIQ_NULL_LOG`, else stderr.
    """

    name = "null"
    priority = -2
    for_tests = True
    versions = Versions(hookspec=1, ir=1, contract=1)

    def __init__(self, log: str | None = None) -> None:
        self._inner, self._log = ReferenceBackend(), Log(log)

    def devices(self) -> Sequence[Device]:
        """Return the reference's devices."""
        return [Device("cpu", "the reference, and a log of every call")]

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Return the reference's decision."""
        with self._log.call("supports", node=node.name, op=node.op.describe()) as outcome:
            answer = self._inner.supports(node, graph, program)
            outcome["declined"] = None if isinstance(answer, Supported) else answer.reason
            return answer

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> NullExecutable:
        """Compile the reference's executable, and log its calls."""
        nodes = {name: len(graph.nodes) for name, graph in program.graphs.items()}
        given = {
            **asdict(options),
            "extra": sorted(options.extra),
            "peers": type(options.peers).__name__,
        }
        with self._log.call("compile", nodes=nodes, weights=len(weights), options=given):
            return NullExecutable(self._inner.compile(program, weights, options), self._log)


class NullExecutable(OptionalCapabilities):
    """An executable whose calls are logged; see `cortiq.backend.Executable`."""

    def __init__(self, inner: Executable, log: Log) -> None:
        self._inner, self.log = inner, log
        self._opened = 0
        self.program, self.placement = inner.program, inner.placement

    def wrapped(self, state: State) -> NullState:
        """Return a sequence of the reference under the next number."""
        self._opened += 1
        return NullState(state, self, self._opened)

    def open(self, limit: int) -> NullState:
        """Open a new, empty sequence of at most `limit` positions."""
        with self.log.call("open", limit=limit) as outcome:
            state = self.wrapped(self._inner.open(limit))
            outcome["sequence"] = state.number
            return state

    def import_(self, exported: ExportedState, limit: int) -> NullState:
        """Import a sequence that continues an exported one."""
        with self.log.call("import", lengths=dict(exported.lengths), limit=limit) as outcome:
            state = self.wrapped(self._inner.import_(exported, limit))
            outcome["sequence"] = state.number
            return state

    def forward(self, batch: Batch) -> Finished:
        """Compute a batch on the reference."""
        rows = [replace(row, state=_inner_of(row.state)) for row in batch.rows]
        outer = {_inner_of(row.state): row.state for row in batch.rows}
        with self.log.call("forward", entry=batch.entry, rows=_shown(batch)) as outcome:
            result = self._inner.forward(Batch(rows, batch.entry)).result()
            outcomes = {outer[state]: found for state, found in result.outcomes.items()}
            outcome["outcomes"] = [
                {"sequence": _number(state), **asdict(found)} for state, found in outcomes.items()
            ]
        return Finished(BatchResult(outcomes, result.rows))

    def state_bytes(self, rows: int) -> int:
        """Return the memory that one sequence of this many rows takes."""
        return self._inner.state_bytes(rows)

    def free_bytes(self) -> int:
        """Return the memory left for sequences."""
        return self._inner.free_bytes()

    def close(self) -> None:
        """Release weights and sequences."""
        with self.log.call("close"):
            self._inner.close()


class NullState:
    """A sequence whose calls are logged; see `cortiq.backend.State`."""

    def __init__(self, inner: State, owner: NullExecutable, number: int) -> None:
        self.inner, self._owner, self.number = inner, owner, number

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""
        return self.inner.limit

    def length(self, entry: str = "trunk") -> int:
        """Return the number of rows that the entry graph has seen."""
        return self.inner.length(entry)

    def reserve(self, rows: int) -> bool:
        """Make sure that `rows` more trunk rows fit."""
        return self._logged("reserve", rows=rows)

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget rows."""
        return self._logged("rewind", length=length, entry=entry)

    def snapshot(self) -> Any:
        """Copy the whole state."""
        with self._owner.log.call("snapshot", sequence=self.number):
            return self.inner.snapshot()

    def restore(self, snapshot: Any) -> None:
        """Become what the snapshot was taken of."""
        with self._owner.log.call("restore", sequence=self.number):
            self.inner.restore(snapshot)

    def fork(self, length: int | None = None) -> NullState:
        """Fork the sequence into a second one."""
        with self._owner.log.call("fork", sequence=self.number, length=length) as outcome:
            other = self._owner.wrapped(self.inner.fork(length))
            outcome["result"] = other.number
            return other

    def export(self) -> ExportedState:
        """Export the sequence in the canonical layout."""
        with self._owner.log.call("export", sequence=self.number) as outcome:
            exported = self.inner.export()
            outcome["result"] = dict(exported.lengths)
            return exported

    def release(self) -> None:
        """Free its memory."""
        self._logged("release")

    def _logged(self, name: str, **given: Any) -> Any:
        """Log a call with plain arguments and a plain result."""
        with self._owner.log.call(name, sequence=self.number, **given) as outcome:
            outcome["result"] = getattr(self.inner, name)(**given)
            return outcome["result"]


def _inner_of(state: Any) -> Any:
    """Return the reference's sequence; anything else is passed on for the reference to refuse."""
    return state.inner if isinstance(state, NullState) else state


def _number(state: Any) -> int | None:
    return getattr(state, "number", None)


def _shown(batch: Batch) -> list[dict[str, Any]]:
    """Return the rows of a batch, for the log."""
    return [
        {
            "sequence": _number(row.state),
            "position": row.position,
            "token": _token(row),
            "wants": [repr(want) for want in row.wants],
            "inputs": sorted(row.inputs),
        }
        for row in batch.rows
    ]


def _token(row: Row) -> Any:
    """Return the id, or the row of the previous batch that drew it."""
    if isinstance(row.token, Drawn):
        return {"drawn": row.token.row}
    try:
        return int(row.token)
    except (TypeError, ValueError):
        return repr(row.token)
