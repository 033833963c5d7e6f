"""One sequence on an executable: a prompt in chunks, then steps that chain on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.backend import (
    Batch,
    BatchResult,
    Digest,
    Drawn,
    Executable,
    Outcome,
    Row,
    Status,
    Ticket,
    Want,
)
from cortiq.backend.batch import NO_INPUTS
from cortiq.backend.error_attribution import attributed_to, backend_names, failure_hint
from cortiq.errors import BackendError, DeclinedError, RequestError, SequenceFailedError
from cortiq.ir.images import image_rows

DIGEST = Digest("logits")
RowResult = Mapping[Want, Any]
"""Result of a row, by want."""
Progress = Callable[[int, int], None]
"""Called with the rows done and the rows in all."""


@dataclass(frozen=True, eq=False)
class PendingBatch:
    """A batch in flight, and the index of its last row.

    Attributes
    ----------
    ticket : the batch.
    row : index of the row in the batch.
    position : its position in the sequence.
    """

    ticket: Ticket
    row: int
    position: int


def check_outcome(outcome: Outcome, position: int, hint: str) -> None:
    """Raise the error that an outcome stands for, if it is not `completed`."""
    where = f"position {position}"
    if outcome.status is Status.FAILED:
        raise SequenceFailedError(
            f"the sequence met a value outside the contract's domain and was cleared"
            f" ({outcome.reason or 'no reason given'})",
            where=where,
            hint=hint,
        )
    if outcome.status is Status.LOST:
        what = f"a device that computed this sequence is gone: {outcome.reason}"
        raise BackendError(what, where=where, hint="Ask again: other devices answer.")
    if outcome.status is Status.DECLINED:
        raise DeclinedError(f"the backend declined the batch: {outcome.reason}", where=where)


class Session:
    """A sequence of an executable and how far it has got; a context manager that releases it.

    Parameters
    ----------
    executable : what computes it.
    limit : positions it may ever hold; memory for all of them is reserved at once.

    Raises
    ------
    RequestError : there is no memory for that many positions.
    """

    def __init__(self, executable: Executable, limit: int) -> None:
        self.executable = executable
        with attributed_to(backend_names(executable)):
            self.state = executable.open(limit)
        self.length, self._text = 0, image_rows(executable.program)
        self._in_flight: list[PendingBatch] = []
        if not self.state.reserve(limit):
            self.state.release()
            raise RequestError(
                f"{limit} positions take {executable.state_bytes(limit)} bytes of state,"
                f" {executable.free_bytes()} are free",
                hint="ask for fewer tokens or a shorter context",
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while self._in_flight:
                self._abandon(self._in_flight.pop(), loud=kind is None)
        finally:
            self.state.release()

    def _abandon(self, pending: PendingBatch, loud: bool) -> None:
        """Wait for an unread batch; its error must not hide the one being raised."""
        try:
            with attributed_to(backend_names(self.executable)):
                pending.ticket.result()
        except Exception:
            if loud:
                raise

    def feed(
        self, ids: Sequence[int | Drawn], wants: tuple[Want, ...], *, every: bool = False
    ) -> PendingBatch:
        """Submit one batch of rows; the last one has the wants, or `every` one."""
        last = len(ids) - 1
        return self.feed_each(ids, [wants if every or i == last else () for i in range(len(ids))])

    def feed_each(
        self,
        ids: Sequence[int | Drawn],
        wants: Sequence[tuple[Want, ...]],
        inputs: Sequence[Mapping[str, Any]] | None = None,
    ) -> PendingBatch:
        """Submit one batch of rows, each with its own wants, and with what it supplies.

        Where the model sees images a row supplies what one of a text does, unless it is said.
        """
        given: Sequence[Mapping[str, Any]] = inputs or [NO_INPUTS] * len(ids)
        if self._text.supplies:
            given = [{**self._text.inputs(self.length + i), **own} for i, own in enumerate(given)]
        rows = [
            Row(self.state, self.length + i, token, wants[i], given[i])
            for i, token in enumerate(ids)
        ]
        with attributed_to(backend_names(self.executable)):
            ticket = self.executable.forward(Batch(rows))
        self.length += len(ids)
        pending = PendingBatch(ticket, len(ids) - 1, self.length - 1)
        self._in_flight.append(pending)
        return pending

    def read(self, pending: PendingBatch) -> RowResult:
        """Wait for a batch; return the result of its last row.

        Raises
        ------
        SequenceFailedError : a value left the domain; the sequence is cleared.
        DeclinedError : the backend refused the batch before anything moved.
        """
        return self.read_rows(pending)[pending.row]

    def read_rows(self, pending: PendingBatch) -> Sequence[RowResult]:
        """Wait for a batch; return the results of its rows. Raises what `read` raises."""
        result = self._wait(pending)
        if self.state not in result.outcomes:
            raise BackendError("the backend does not say what became of a sequence")
        hint = failure_hint(self.executable)
        check_outcome(result.outcomes[self.state], pending.position, hint)
        return result.rows

    def _wait(self, pending: PendingBatch) -> BatchResult:
        self._in_flight.remove(pending)
        with attributed_to(backend_names(self.executable)):
            return pending.ticket.result()

    def prefill(
        self,
        ids: Sequence[int],
        wants: tuple[Want, ...],
        chunk_rows: int,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        progress: Progress | None = None,
    ) -> PendingBatch | None:
        """Feed a prompt in chunks; the last row's wants are returned as pending, or None when
        `cancelled` between chunks.

        The number of rows of a chunk changes no bit of any row.
        """
        starts = range(0, len(ids), chunk_rows)
        for start in starts:
            if cancelled():
                return None
            chunk = ids[start : start + chunk_rows]
            if start == starts[-1]:
                return self.feed(chunk, wants)
            self.read(self.feed(chunk, ()))
            if progress:
                progress(start + len(chunk), len(ids))
        raise RequestError("the prompt has no tokens")

    def follow(self, pending: PendingBatch, wants: tuple[Want, ...]) -> PendingBatch:
        """Submit the step whose input is the token that `pending` draws, without waiting for it."""
        return self.feed([Drawn(pending.row)], wants)

    def discard(self, pending: PendingBatch) -> None:
        """Wait for a step that ran ahead of the end and drop it: the state is rewound before it.

        Its outcome is ignored. Use the sequence no further unless the rewind reached that length.
        """
        result = self._wait(pending)
        self.length = pending.position
        outcome = result.outcomes.get(self.state)
        if outcome is not None and outcome.status is Status.COMPLETED:
            self.length = self.state.rewind(pending.position)


def digest_of(row: RowResult) -> tuple[int, int, int, int]:
    """Return the digest of the logits that a row brought."""
    first, second, third, fourth = map(int, row[DIGEST])
    return first, second, third, fourth
