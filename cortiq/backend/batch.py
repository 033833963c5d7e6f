"""Batches: flat lists of rows, what each row wants back, and what became of each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from cortiq.backend.state import State
from cortiq.numerics.contract import F32
from cortiq.numerics.masks import Mask
from cortiq.numerics.sampling import Sampling


@dataclass(frozen=True)
class Named:
    """Wants the value of this name of the graph, in the shape of one row.

    float32, int32 for `i32` values, and a `numerics.quantise.Quantised` for `q16` ones; a name the
    graph does not have declines the sequence.
    """

    name: str


@dataclass(frozen=True)
class Argmax:
    """Wants the index of the largest logit, the lowest on ties: int.

    `name` is the value that has the logits: of all ids, or of the first ones of the vocabulary.
    """

    name: str = "logits"


class LateMask(bytes):
    """Stands for a mask that is supplied once the batch is under way; see `LateTicket`."""


LATE = LateMask()


@dataclass(frozen=True)
class Draw:
    """Wants a token drawn from the row's logits (`numerics.sampling.draw`): int.

    The penalties' history is every id the sequence was fed up to and including this row. The
    random numbers are those of (sampling.seed, choice, position + ahead): the drawn token's
    position. Ids outside the mask (`numerics.masks`; None allows all) do not exist for the draw; a
    mask that allows nothing declines the sequence. `LATE` masks are for executables that take them.

    A row of a draft head is for a token further ahead, and the ids before that are not its
    sequence's. With `ahead` and `history` it draws with the very numbers that the trunk will, so
    that the two mostly agree.

    Attributes
    ----------
    name : the value drawn from: logits of all ids, or of the first ones of the vocabulary.
    ahead : how far the drawn token's position lies after the row's.
    history : what the penalties look at instead.
    """

    sampling: Sampling
    choice: int = 0
    mask: Mask | None = field(default=None, repr=False)
    name: str = "logits"
    ahead: int = 1
    history: tuple[int, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Top:
    """Wants the `count` largest logits: (ids int32, values float32, logsumexp float32)."""

    count: int


@dataclass(frozen=True)
class DrawnLogit:
    """Wants the logit of the token that the row draws, and the logsumexp of its logits: float32.

    Both are of the row's logits divided by `calibration`; see `numerics.sampling.drawn_logit`. The
    row has a want that draws.
    """

    calibration: float = 1.0

    @property
    def scale(self) -> np.float32:
        """RN(1/calibration)."""
        return F32(1) / F32(self.calibration)


@dataclass(frozen=True)
class Digest:
    """Wants the contract's digest of a named value's row: four 32-bit words."""

    name: str = "logits"


Want = Named | Argmax | Draw | Top | DrawnLogit | Digest


@dataclass(frozen=True)
class Drawn:
    """As a row's input: the token that row `row` of the previous batch drew (Draw or Argmax)."""

    row: int


NO_INPUTS: Mapping[str, np.ndarray] = MappingProxyType({})


@dataclass(frozen=True, init=False)
class Row:
    """One position of one sequence.

    Attributes
    ----------
    state : the sequence; rows of one sequence are neighbours, positions ascending by one.
    position : absolute position; the first row's equals the sequence's length.
    token : the input id, or the token drawn in the previous batch.
    wants : what to bring back.
    inputs : values of the graph supplied per row: its extra inputs (`hidden` of a draft head,
        edges between partitions), or the embedding itself (`embed`), for which `token` is then
        only the label that histories keep.
    """

    state: State
    position: int
    token: int | Drawn
    wants: tuple[Want, ...]
    inputs: Mapping[str, np.ndarray]

    def __init__(
        self,
        state: State,
        position: int,
        token: int | Drawn,
        wants: tuple[Want, ...] = (),
        inputs: Mapping[str, np.ndarray] = NO_INPUTS,
    ) -> None:  # what a frozen class writes takes thrice as long, for each row of each step
        fields = self.__dict__
        fields["state"], fields["position"], fields["token"] = state, position, token
        fields["wants"], fields["inputs"] = wants, inputs


@dataclass(frozen=True)
class Batch:
    """Rows for one entry graph, grouped by sequence.

    Attributes
    ----------
    held : what all rows want by name is for rows of later batches: a backend may keep it, and bring
        `held_rows.HeldRows`.
    """

    rows: Sequence[Row]
    entry: str = "trunk"
    held: bool = False


class Status(StrEnum):
    """Status of a sequence after a batch."""

    COMPLETED = "completed"
    DECLINED = "declined"
    """Refused before anything moved; the sequence is as it was."""
    FAILED = "failed"
    """Met a value outside the domain; the sequence is cleared, others are not concerned.

    What counts is every value that the state or a want of the row depends on; a backend that
    computes more than that must not fail a sequence for it.
    """
    LOST = "lost"
    """A device that held it is gone, and so are its rows: the sequence is empty. Others go on."""


@dataclass(frozen=True)
class Outcome:
    """Status of one sequence, with the reason when it is not `completed`."""

    status: Status
    reason: str = ""


@dataclass(frozen=True)
class BatchResult:
    """Per sequence an outcome; per row its wants (empty for sequences not completed)."""

    outcomes: Mapping[State, Outcome]
    rows: Sequence[Mapping[Want, Any]]


COMPLETED = Outcome(Status.COMPLETED)
FAULT = "a value was not finite, or its magnitude was 2^50 or more"
"""The reason of a `failed` outcome."""


@dataclass(frozen=True)
class Finished:
    """The ticket of a batch that was computed when it was submitted."""

    outcome: BatchResult

    def result(self) -> BatchResult:
        """Return the batch's result."""
        return self.outcome


class Ticket(Protocol):
    """A batch under way."""

    def result(self) -> BatchResult:
        """Wait for the batch and return what it brought."""


class LateTicket(Ticket, Protocol):
    """The ticket of a batch in which draws wait for their masks."""

    def supply(self, masks: Sequence[Mask | None]) -> None:
        """Give the masks of the rows whose draws have `LATE` ones, in order; None allows all.

        It is called before the result is asked for, and before another batch is submitted: a draw
        whose mask did not come fails its sequence.
        """
