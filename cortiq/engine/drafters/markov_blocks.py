"""Block drafts whose tokens depend on one another: DSpark (`models.dspark`).

The trunk keeps what the block attends to, so there is nothing to catch up with. One forward scores
all rows of a block: the last committed token, which the trunk has not read yet, and mask tokens;
row k drafts the token behind it. Then a row at a time, what the token before contributes is added
to its scores, and its token is drawn as the target will draw there. Both entries forget their rows
as soon as a draft is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cortiq.backend import Named, Row, State
from cortiq.engine.drafters.batched import DraftSteps, ForwardRequest
from cortiq.engine.drafters.blocks import LOGITS
from cortiq.engine.drafters.heads import SharedStateDrafting, draft_want, head_of
from cortiq.engine.drafting import NOTHING, Draft, Task
from cortiq.engine.session import RowResult
from cortiq.ir.heads import (
    BASE_SCORES,
    CONFIDENCE,
    LAST_CONTEXT,
    LAST_ROW,
    LISTED,
    PLACE,
    REDUCED,
    DraftHead,
)
from cortiq.numerics.key_blocks import list_keys

LEAST_SURVIVAL = 0.2
"""Chance of being reached and accepted from which a draft is verified: a row of a batch that is
verified costs about this much of a token (docs/drafting.md)."""


def block_inputs(before: int, size: int, window: int = 0) -> dict[str, npt.NDArray[np.int32]]:
    """Return what the rows of a block supply, each with an axis of rows before it.

    Parameters
    ----------
    before : rows of the trunk. size : rows of the block. window : of the trunk's that it sees; 0
        for all.
    """
    given = {
        PLACE: np.arange(before, before + size, dtype=np.int32)[:, None],
        LAST_ROW: np.full(size, size - 1, np.int32),
        LAST_CONTEXT: np.full(size, before - 1, np.int32),
    }
    if window:
        given[LISTED] = list_keys(given[LAST_CONTEXT], 1, window)
    return given


class MarkovBlockDrafting(SharedStateDrafting):
    """One sequence of a DSpark drafter."""

    def __init__(self, head: DraftHead, task: Task) -> None:
        super().__init__(head, task)
        self.block, self.chain = head.entries
        graphs = task.executable.program.graphs
        self._confident = CONFIDENCE in graphs[self.chain].values
        listed = graphs[self.block].values.get(LISTED)
        self._window = listed.shape[-1] if listed else 0

    def steps(self, ids: Sequence[int], count: int) -> DraftSteps[Draft]:
        """Draft one block, at most as many ids as it was made for.

        The drafter's rows see one another, so a block has all of its rows whatever is drafted.
        """
        state = self._state()
        before = state.length()
        size = min(self.head.size, state.limit, self.task.executable.program.context - before)
        if before < 1 or before != len(ids) - 1 or min(size, count) < 1:
            return NOTHING
        tokens = [ids[-1], *[self.head.mask_token] * (size - 1)]
        wants = (LOGITS, Named(REDUCED)) if self._confident else (LOGITS,)
        given = block_inputs(before, size, self._window)
        rows = [
            Row(state, i, token, wants if i < count else (), {n: x[i] for n, x in given.items()})
            for i, token in enumerate(tokens)
        ]
        brought = yield ForwardRequest(self.task.executable, rows, self.block)
        text = yield from self._chained(state, ids, brought[: min(size, count)])
        self._forget()
        return Draft(tuple(text[len(ids) :]))

    def _chained(
        self, state: State, ids: Sequence[int], scored: Sequence[RowResult]
    ) -> DraftSteps[list[int]]:
        """Return the ids and drafts behind them, up to the first that will hardly be accepted."""
        text, survival = list(ids), 1.0
        for k, row in enumerate(scored):
            want = draft_want(self.task, text, ahead=len(text) - k)
            given = {BASE_SCORES: np.asarray(row[LOGITS])}
            wants = (want, Named(CONFIDENCE)) if self._confident else (want,)
            if self._confident:
                given[REDUCED] = np.asarray(row[Named(REDUCED)])
            rows = [Row(state, k, text[-1], wants, given)]
            (found,) = yield ForwardRequest(self.task.executable, rows, self.chain)
            if self._confident:
                survival *= float(np.asarray(found[Named(CONFIDENCE)])[0])
                if k and survival < LEAST_SURVIVAL:
                    break
            text.append(int(found[want]))
        return text

    def _known(self, depth: int) -> int:
        return 0

    def _forget(self) -> None:
        for entry in self.head.entries:
            self._rewind(entry, 0)

    def _catch_up(self, ids: Sequence[int], leave: int = 0) -> DraftSteps[None]:
        """Feed nothing: the trunk keeps the context."""
        yield from ()


class MarkovBlockDrafter:
    """Drafts by a DSpark drafter that was compiled with the model: `--draft dspark`."""

    name = "dspark"

    def open(self, task: Task) -> MarkovBlockDrafting:
        """Begin on a sequence.

        Raises
        ------
        RequestError : the program has no block drafter.
        """
        return MarkovBlockDrafting(head_of(task.executable.program, "block_drafter"), task)
