"""The end of a round: which rows hold, what they drew, and where the state has to go back to.

One rule for greedy and sampled text: a row holds if every drafted id before it was what the target
itself drew there; what it drew is then the next token. So drafts decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import NamedTuple

from cortiq.backend import State
from cortiq.engine.in_flight import InFlightBatch, RowResult, ScheduledRows
from cortiq.engine.sequence import Sequence
from cortiq.errors import BackendError


class Committed(NamedTuple):
    """Tokens that a part brought, and how many of its drafted ids were among them."""

    emitted: int
    accepted: int


NO_TOKEN = Committed(0, 0)


def commit(
    step: InFlightBatch, part: ScheduledRows, rows: Rows[RowResult], vocabulary: int
) -> Committed:
    """Commit the tokens of a part that draws; return their numbers.

    Every token goes through `Output.commit`, drafted or not. The text may end inside the round:
    what was drawn after that is as if it never was.

    Parameters
    ----------
    rows : what the rows of the whole batch brought.

    Raises
    ------
    BackendError : a row drew no id of the vocabulary.
    """
    sequence, drafted = part.sequence, part.draft.ids
    name = part.drafter
    emitted = accepted = 0
    for place, index in enumerate(part.drawing):
        row = rows[index]
        token = drawn_token(row[step.rows[index].wants[0]], vocabulary)
        held = place < len(drafted) and drafted[place] == token
        sequence.stats.token_arrived()
        sequence.output.commit(token, row, name if held else "")
        sequence.ids.append(token)
        emitted += 1
        accepted += held
        if sequence.output.finish_reason or not held:
            break
    return Committed(emitted, accepted)


def drawn_token(drawn: object, vocabulary: int) -> int:
    """The token a row drew; a backend that draws none, or no id at all, breaks its contract."""
    token = int(drawn)  # type: ignore[call-overload]
    if not 0 <= token < vocabulary:
        raise BackendError(f"the backend drew token {token} of a vocabulary of {vocabulary}")
    return token


def settle(sequence: Sequence, state: State, part: ScheduledRows) -> None:
    """Let the state hold the rows of committed ids only, however far it can go back.

    Where it cannot go back exactly, what it lacks is fed again: with a checkpoint of before the
    round that is the round's own rows, without one whatever the backend says.
    """
    wanted = min(len(sequence.ids) - 1, part.stop)
    if part.draws == 0 or wanted >= part.stop:
        sequence.fed = part.stop
        return
    sequence.fed = state.rewind(wanted)
    if sequence.fed < part.start and part.checkpoint is not None:
        state.restore(part.checkpoint)
        sequence.fed = part.start
