"""Checks of everything a backend returns: one sentence for each breach of the protocol.

Backends are called through these functions only. An executable comes back in a wrapper that checks
what its own calls return; whatever else it has is there under the same name.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

from cortiq.backend.answer_checks import unlike
from cortiq.backend.batch import (
    Batch,
    BatchResult,
    Finished,
    LateTicket,
    Outcome,
    Status,
    Ticket,
)
from cortiq.backend.columns import columns_of
from cortiq.backend.protocol import (
    Backend,
    CompileOptions,
    Declined,
    Device,
    Executable,
    OptionalCapabilities,
    Support,
    Supported,
)
from cortiq.backend.row_runs import stretches_of
from cortiq.backend.state import ExportedState, State
from cortiq.errors import BackendError, DeclinedError, shown
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight
from cortiq.numerics.masks import Mask

OPTIONAL = frozenset(name for name in vars(OptionalCapabilities) if not name.startswith("_"))
"""Members that an executable may lack."""
_WITHOUT = OptionalCapabilities()
EXECUTABLE = ("open", "import_", "forward", "state_bytes", "free_bytes", "close")
"""Methods of an executable."""
STATE = ("length", "reserve", "rewind", "snapshot", "restore", "fork", "export", "release")
"""Methods of a sequence."""


def breach(backend: str, call: str, returned: str, wanted: str) -> BackendError:
    """Return the error of a backend whose call returned something else than is wanted."""
    return BackendError(
        f"{call} of the backend {backend!r} returned {returned}; it returns {wanted}"
    )


def devices_of(backend: Backend) -> Sequence[Device]:
    """Return the devices that a backend finds.

    Raises
    ------
    BackendError : what it returned are no devices, or two of one name. The backend's own errors
        pass.
    """
    found: Any = backend.devices()
    wanted = "a list of cortiq.backend.Device"
    if isinstance(found, str | bytes) or not isinstance(found, Sequence):
        raise breach(backend.name, "devices()", shown(found), wanted)
    for device in found:
        if not isinstance(device, Device) or not isinstance(device.name, str) or not device.name:
            raise breach(backend.name, "devices()", f"{shown(device)} in its list", wanted)
    names = [device.name for device in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        what = f"the device {twice!r} twice"
        raise breach(backend.name, "devices()", what, "each device once, by a name of its own")
    return found


def support_of(backend: Backend, node: Node, graph: Graph, program: Program) -> Support:
    """Return whether a backend executes a node; BackendError for what is no answer."""
    answer: Any = backend.supports(node, graph, program)
    declined = isinstance(answer, Declined) and isinstance(answer.reason, str)
    if not declined and not isinstance(answer, Supported):
        what = f"{shown(answer)} for the node {node.name!r}, {node.op.kind}"
        raise breach(backend.name, "supports()", what, "Supported() or Declined(reason)")
    return answer


def compiled_on(
    backend: Backend, program: Program, weights: Mapping[str, Weight], options: CompileOptions
) -> Executable:
    """Return a program's executable on a backend, in a wrapper that checks what its calls return.

    Raises
    ------
    BackendError : what `compile` returned is no executable of this program.
    """
    made: Any = backend.compile(program, weights, options)
    lacking = [name for name in EXECUTABLE if not callable(getattr(made, name, None))]
    if lacking:
        what = f"{shown(made)}, which lacks {', '.join(lacking)}"
        raise breach(backend.name, "compile()", what, "a cortiq.backend.Executable")
    _check_facts(backend.name, made, program)
    return cast(Executable, CheckedExecutable(backend.name, made, backend))


def _check_facts(backend: str, made: Any, program: Program) -> None:
    """Refuse an executable whose attributes are not what the protocol says."""
    own = getattr(made, "program", None)
    if not isinstance(own, Program):
        wanted = "the cortiq.ir.Program that it was compiled from"
        raise breach(backend, "`program` of an executable", shown(own), wanted)
    placement = getattr(made, "placement", None)
    if not isinstance(placement, Mapping) or not all(
        isinstance(text, str) for pair in placement.items() for text in pair
    ):
        wanted = "a mapping of the nodes' names to the backends' names"
        raise breach(backend, "`placement` of an executable", shown(placement), wanted)
    known = {name[:end] for name in placement for end in _ends(name)}
    nodes = [node.name for graph in program.graphs.values() for node in graph.nodes]
    absent = next((name for name in nodes if name not in known), None)
    if absent is not None:
        wanted = "who computes each node, or each of its parts"
        what = f"nothing about the node {absent!r}"
        raise breach(backend, "`placement` of an executable", what, wanted)
    windows = getattr(made, "windows", {})
    if not isinstance(windows, Mapping):
        wanted = "a mapping of slots to their windows"
        raise breach(backend, "`windows` of an executable", shown(windows), wanted)


def _ends(name: str) -> list[int]:
    """Return where a node's name ends, and those of the layers that it is a part of."""
    return [*(at for at, letter in enumerate(name) if letter == "."), len(name)]


class CheckedExecutable:
    """An executable whose calls return what the protocol says, or raise BackendError.

    Attributes
    ----------
    inner : the backend's own.
    """

    def __init__(self, backend: str, inner: Any, asked: Backend | None = None) -> None:
        self.inner, self._backend, self._asked = inner, backend, asked

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not made yet, or being unpickled
            raise AttributeError(name)
        if name in OPTIONAL:
            return getattr(self.inner, name, getattr(_WITHOUT, name))
        return getattr(self.inner, name)

    def vary(self, program: Program | None, weights: Mapping[str, Weight]) -> None:
        """Take a program with overlays, all nodes of which the backend computes itself.

        Raises
        ------
        DeclinedError : it declines one. BackendError : it takes no overlays.
        """
        if program is not None and self._asked is not None:
            for node in program.trunk.nodes:
                answer = support_of(self._asked, node, program.trunk, program)
                if isinstance(answer, Declined):
                    what = f"{self._backend} declines overlays of this model: {answer.reason}"
                    raise DeclinedError(what, where=node.name)
        getattr(self.inner, "vary", _WITHOUT.vary)(program, weights)

    def open(self, limit: int) -> State:
        """Return a new, empty sequence."""
        return self._sequence("open()", self.inner.open(limit))

    def import_(self, exported: ExportedState, limit: int) -> State:
        """Return a sequence that continues an exported one."""
        return self._sequence("import_()", self.inner.import_(exported, limit))

    def state_bytes(self, rows: int) -> int:
        """Return the memory that a sequence of this many rows takes."""
        return self._count("state_bytes()", self.inner.state_bytes(rows))

    def free_bytes(self) -> int:
        """Return the memory left for sequences."""
        return self._count("free_bytes()", self.inner.free_bytes())

    def forward(self, batch: Batch) -> Ticket:
        """Submit a batch."""
        ticket = self.inner.forward(batch)
        if isinstance(ticket, Finished):
            self.check_result(batch, ticket.outcome)
            return ticket
        if not callable(getattr(ticket, "result", None)):
            raise breach(self._backend, "forward()", shown(ticket), "a cortiq.backend.Ticket")
        return _CheckedTicket(self, batch, ticket)

    def _sequence(self, call: str, state: Any) -> State:
        lacking = [name for name in STATE if not callable(getattr(state, name, None))]
        if lacking:
            what = f"{shown(state)}, which lacks {', '.join(lacking)}"
            raise breach(self._backend, call, what, "a cortiq.backend.State")
        return state

    def _count(self, call: str, found: Any) -> int:
        try:
            return operator.index(found)
        except TypeError:
            raise breach(self._backend, call, shown(found), "a number of bytes") from None

    def check_result(self, batch: Batch, result: Any) -> None:
        """Refuse a result that does not answer a batch: outcomes, rows, and what each wants."""
        call = "forward()"
        if not isinstance(result, BatchResult):
            raise breach(self._backend, call, shown(result), "what a BatchResult is the result of")
        if len(result.rows) != len(batch.rows):
            what = f"{len(result.rows)} rows for a batch of {len(batch.rows)}"
            raise breach(self._backend, call, what, "a row for each row of the batch")
        values = self.inner.program.graphs[batch.entry].values
        outcomes = result.outcomes
        for rows, state, wants in stretches_of(batch.rows):
            outcome = outcomes.get(state)
            if not isinstance(outcome, Outcome) or not isinstance(outcome.status, Status):
                wanted = "a cortiq.backend.Outcome for each"
                raise breach(self._backend, call, f"{shown(outcome)} for a sequence", wanted)
            if not wants or outcome.status is not Status.COMPLETED:
                continue
            if rows.stop > rows.start + 1 and columns_of(result.rows, rows) is not None:
                rows = rows[:1]  # an array's rows are alike
            for at in rows:
                fault = unlike(wants, result.rows[at], values, batch.held)
                if fault is not None:
                    what, wanted = fault
                    raise breach(self._backend, call, f"{what} in row {at}", wanted)


class _CheckedTicket:
    """A batch under way, whose result is checked once it is there."""

    def __init__(self, executable: CheckedExecutable, batch: Batch, inner: Ticket) -> None:
        self._executable, self._batch, self._inner = executable, batch, inner

    def supply(self, masks: Sequence[Mask | None]) -> None:
        """Give the masks of draws that wait for them."""
        cast(LateTicket, self._inner).supply(masks)

    def result(self) -> BatchResult:
        """Wait for the batch and return what it brought."""
        result = self._inner.result()
        self._executable.check_result(self._batch, result)
        return result
