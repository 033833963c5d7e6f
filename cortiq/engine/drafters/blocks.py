"""Block drafts: one forward fills a block of masked positions, all of which see one another.

The drafter's context is what the trunk's tapped layers left at every position it has read; those
rows are final. The block stands behind them: the last committed token, which the trunk has not read
yet, and mask tokens. Row i of it drafts the token of its own position, i places on. The block is
forgotten as soon as it has drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.backend import Draw, Named, Row, State, Want
from cortiq.engine.drafters.batched import DraftSteps, ForwardRequest
from cortiq.engine.drafters.heads import CHUNK_ROWS, SharedStateDrafting, draft_want, head_of
from cortiq.engine.drafting import NOTHING, Draft, Task
from cortiq.engine.session import RowResult
from cortiq.ir import Program
from cortiq.ir.heads import RECALLED, DraftHead
from cortiq.numerics import sampling
from cortiq.numerics.contract import F32

LOGITS = Named("logits")


def block_head(program: Program) -> DraftHead:
    """Return the block drafter of a program.

    Raises
    ------
    RequestError : it was compiled without one.
    """
    return head_of(program, "block_drafter")


def block_want(task: Task, ids: Sequence[int]) -> Want:
    """Return the want of every masked row: its token, or its logits where what may be drawn depends
    on the drafts before it.
    """
    want = draft_want(task, ids, ahead=0)
    apart = isinstance(want, Draw) and (want.history is not None or want.mask is not None)
    return LOGITS if apart else want


def drawn_draft(task: Task, row: RowResult, text: Sequence[int]) -> int:
    """Draw the draft after a text from a row's logits, as the target will draw there."""
    wanted = task.want_at(text)
    if not isinstance(wanted, Draw):
        return int(sampling.argmax(row[LOGITS]))
    how, choice, mask = wanted.sampling, wanted.choice, wanted.mask
    return sampling.draw(row[LOGITS], how, text, len(text), choice, mask=mask)


class BlockDrafting(SharedStateDrafting):
    """One sequence of a block drafter."""

    def __init__(self, head: DraftHead, task: Task) -> None:
        super().__init__(head, task)
        (self.entry,) = head.entries
        graph = task.executable.program.graphs[self.entry]
        taps = [n for node in graph.nodes for n in node.outputs if n.startswith(RECALLED)]
        self._nothing = {n: np.zeros(graph.values[n].shape, F32) for n in taps}

    def steps(self, ids: Sequence[int], count: int) -> DraftSteps[Draft]:
        """Draft one block, at most as many ids as it was made for."""
        state = self._state()
        stop, count = state.length(), min(count, self.head.deepest)
        room = min(state.limit, self.task.executable.program.context) - stop
        if room < count + 1 or stop != len(ids) - 1:
            return NOTHING
        yield from self._catch_up(ids, leave=CHUNK_ROWS)
        start = state.length(self.entry)
        end = stop + count
        want = block_want(self.task, ids)
        tokens = [ids[-1], *[self.head.mask_token] * count]
        rows = [self._context(state, ids, p) for p in range(start, stop)]
        rows += [self._masked(state, stop + i, token, end, (want,) if i else ())
                 for i, token in enumerate(tokens)]  # fmt: skip
        brought = (yield ForwardRequest(self.task.executable, rows, self.entry))[-count:]
        self._rewind(self.entry, stop)
        text = list(ids)
        for row in brought:
            text.append(int(row[want]) if want != LOGITS else drawn_draft(self.task, row, text))
        return Draft(tuple(text[len(ids) :]))

    def _known(self, depth: int) -> int:
        return self.task.state().length()

    def _catch_up(self, ids: Sequence[int], leave: int = 0) -> DraftSteps[None]:
        """Feed context rows, all or but the last `leave`."""
        state = self._state()
        stop = state.length()
        while state.length(self.entry) + leave < stop:
            start = state.length(self.entry)
            end = min(start + CHUNK_ROWS, stop)
            rows = [self._context(state, ids, p) for p in range(start, end)]
            yield ForwardRequest(self.task.executable, rows, self.entry)

    def _context(self, state: State, ids: Sequence[int], position: int) -> Row:
        given = {"last": np.array(position, np.int32), "context": np.ones(1, F32)}
        return Row(state, position, ids[position], (), given)

    def _masked(
        self, state: State, position: int, token: int, last: int, wants: tuple[Want, ...]
    ) -> Row:
        given = {"last": np.array(last, np.int32), "context": np.zeros(1, F32), **self._nothing}
        return Row(state, position, token, wants, given)


class BlockDrafter:
    """Drafts by a block drafter that was compiled with the model: `--draft dflash:PATH`."""

    name = "dflash"

    def open(self, task: Task) -> BlockDrafting:
        """Begin on a sequence.

        Raises
        ------
        RequestError : the program has no block drafter.
        """
        return BlockDrafting(block_head(task.executable.program), task)
