"""Acceptance of drafts: commits the tokens of a round, and rewinds the state to them.

One rule for greedy and sampled text: a row is accepted if every drafted id before it is what the
target itself drew there; what it drew is then the next token. So drafts decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import NamedTuple

from cortiq.backend import BatchResult, Executable, State, Status
from cortiq.backend.error_attribution import attributed_to, backend_names, failure_hint
from cortiq.engine.in_flight import InFlightBatch, ScheduledRows
from cortiq.engine.redraw import redrawn
from cortiq.engine.sequence import Sequence
from cortiq.engine.session import RowResult, check_outcome
from cortiq.errors import BackendError


class Committed(NamedTuple):
    """Numbers of tokens that a round committed, and of drafted ids among them."""

    emitted: int
    accepted: int


NO_TOKEN = Committed(0, 0)


def commit_rows(
    batch: InFlightBatch,
    scheduled: ScheduledRows,
    result: BatchResult,
    executable: Executable,
    vocabulary: int,
) -> Committed:
    """Commit what one sequence's rows drew, and settle its state; return the numbers of its tokens.

    Raises
    ------
    CortiqError : the rows were not computed, or what the backend says of them is wrong.
    """
    sequence, got = scheduled.sequence, NO_TOKEN
    outcome = result.outcomes.get(scheduled.state)
    if outcome is None:
        raise BackendError("the backend does not say what became of a sequence")
    if outcome.status is not Status.COMPLETED:
        check_outcome(outcome, scheduled.stop - 1, failure_hint(executable))
    if scheduled.draws and not sequence.done:
        got = commit(batch, scheduled, result.rows, vocabulary)
    if scheduled.draws == 0 or len(sequence.ids) > scheduled.stop:
        sequence.fed = scheduled.stop
    else:
        with attributed_to(backend_names(executable)):
            settle(sequence, scheduled.state, scheduled)
    return got


def commit(
    batch: InFlightBatch, scheduled: ScheduledRows, rows: Rows[RowResult], vocabulary: int
) -> Committed:
    """Commit the tokens of rows that draw; return their numbers.

    Every token goes through `Output.commit`, drafted or not. The text may end inside the round:
    what was drawn after that is dropped.

    Parameters
    ----------
    rows : results of all rows of the batch.

    Raises
    ------
    BackendError : a row drew no id of the vocabulary.
    """
    sequence, drafted = scheduled.sequence, scheduled.draft.ids
    emitted = accepted = 0
    for position, index in enumerate(scheduled.drawing):
        row = rows[index]
        token = drawn_token(row[batch.rows[index].wants[0]], vocabulary)
        if sequence.request.narrowing is not None:
            token, row = redrawn(sequence.request, sequence.ids, row)
        matches = position < len(drafted) and drafted[position] == token
        sequence.stats.token_arrived()
        sequence.output.commit(token, row, scheduled.drafter if matches else "")
        sequence.ids.append(token)
        emitted += 1
        accepted += matches
        if sequence.output.finish_reason or not matches:
            break
    return Committed(emitted, accepted)


def drawn_token(drawn: object, vocabulary: int) -> int:
    """Return the token a row drew; BackendError if it is no id of the vocabulary."""
    token = int(drawn)  # type: ignore[call-overload]
    if not 0 <= token < vocabulary:
        raise BackendError(f"the backend drew token {token} of a vocabulary of {vocabulary}")
    return token


def settle(sequence: Sequence, state: State, scheduled: ScheduledRows) -> None:
    """Rewind the state to the rows of committed ids, where it has others.

    Where it cannot rewind exactly, missing rows are fed again: with a checkpoint from before the
    round these are the round's own rows, without one as many as the backend says.
    """
    sequence.fed = state.rewind(len(sequence.ids) - 1)
    if sequence.fed < scheduled.start and scheduled.checkpoint is not None:
        state.restore(scheduled.checkpoint)
        sequence.fed = scheduled.start
