"""Draft heads: entry graphs of the target's own program guess the tokens after the next one.

Module k's row j takes the token at position j+k+1 and a hidden row of position j; its logits are
for position j+k+2. A row is final once its token is committed, and kept then; rows over drafted
tokens are forgotten as soon as the draft is made. So the target's sequence only ever holds rows
that follow from its own ids: it can be forked, kept as a prefix and moved like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np

from cortiq.backend import Argmax, Draw, Executable, Named, Row, State, Want
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.drafters.batched import DraftSteps, ForwardRequest, StepwiseDrafting, run_alone
from cortiq.engine.drafting import Draft, Task
from cortiq.engine.policy.streak import Streak
from cortiq.engine.session import RowResult
from cortiq.errors import RequestError
from cortiq.ir import Program
from cortiq.ir.heads import CHAIN, RECALLED, SHORTLIST, DraftHead
from cortiq.numerics.contract import F32

WARM: WeakSet[Executable] = WeakSet()
"""Executables that have been asked for all that drafting asks for."""
CHUNK_ROWS = 256
"""Rows of a prompt that a module is fed at a time."""


HINTS = {
    "draft_head": "load it with heads='auto'; `cortiq inspect MODEL --heads auto` shows one",
    "block_drafter": "load it with heads='dflash:PATH' or heads='dspark:PATH'",
}
"""How a model is loaded with what a fact of its program tells of."""


def head_of(program: Program, fact: str = "draft_head") -> DraftHead:
    """Return the draft head of a program, or its block drafter.

    Raises
    ------
    RequestError : it was compiled without one.
    """
    head = program.facts.get(fact)
    if isinstance(head, DraftHead):
        return head
    what = fact.replace("_", " ")
    raise RequestError(f"the model was loaded without a {what}", where="draft", hint=HINTS[fact])


def final_rows(ids: int, fed: int, depth: int) -> int:
    """Return how many rows of module `depth` follow from `ids` known ids, `fed` of them in the
    trunk.
    """
    return max(0, min(fed, ids - 1 - depth))


def draft_want(task: Task, text: Sequence[int], ahead: int, short: bool = False) -> Want:
    """Return the want of the draft after a text: the target's own there, of a head's row.

    Parameters
    ----------
    ahead : how far the draft's position, that after the text, lies after the row's.
    short : whether the first ids of the vocabulary will do; for draws whose options name ids they
        don't.
    """
    wanted = task.want_at(text)
    if not isinstance(wanted, Draw):
        return Argmax(SHORTLIST) if short else wanted
    s = wanted.sampling
    penalised = (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) != (1, 0, 0)
    named = penalised or s.logit_bias or wanted.mask is not None
    name = SHORTLIST if short and not named else wanted.name
    return replace(wanted, name=name, ahead=ahead, history=tuple(text) if penalised else None)


class SharedStateDrafting(StepwiseDrafting):
    """One sequence of a drafter whose rows belong to the target's sequence."""

    wants: tuple[Want, ...] = ()

    def __init__(self, head: DraftHead, task: Task) -> None:
        self.head, self.task = head, task
        self._held: State | None = None

    def _known(self, depth: int) -> int:
        """Return the number of rows of a module that follow from the trunk's rows."""
        fed = self.task.state().length()
        return final_rows(fed, fed, depth)

    def _state(self) -> State:
        """Return the target's state; when it is another one, drop rows that may follow from other
        ids.
        """
        state = self.task.state()
        if state is not self._held:
            self._held = state
            for depth, entry in enumerate(self.head.entries):
                self._rewind(entry, self._known(depth))
        return state

    def _rewind(self, entry: str, length: int) -> None:
        """Drop the rows of an entry graph from `length` on."""
        state = self.task.state()
        if length < state.length(entry):
            with attributed_to(backend_names(self.task.executable)):
                state.rewind(length, entry)

    def _catch_up(self, ids: Sequence[int], leave: int = 0) -> DraftSteps[None]:
        """Feed the rows that are final but the last `leave`."""
        raise NotImplementedError

    def observe(self, position: int, rows: Sequence[RowResult], ids: Sequence[int]) -> None:
        """Feed the prompt's rows as the target does; later rows wait for the next draft."""
        if position < len(self.task.prompt):
            run_alone(self._catch_up(ids))

    def close(self) -> None:
        """Do nothing: the rows stay with the target's sequence."""


class HeadDrafting(SharedStateDrafting):
    """One sequence of a draft head."""

    def __init__(self, head: DraftHead, task: Task) -> None:
        super().__init__(head, task)
        short = task.executable.program.graphs[head.entries[0]].values.get(SHORTLIST)
        self._streak = Streak(short.shape[0]) if short else None
        self._seen = 0

    def steps(self, ids: Sequence[int], count: int) -> DraftSteps[Draft]:
        """Draft with the first module, and with those after it or the first one's chain."""
        return Draft(tuple((yield from self._drafts(ids, count))))

    def drafts(self, ids: Sequence[int], count: int, forced: Sequence[int] = ()) -> list[int]:
        """Return the drafts after these ids.

        Parameters
        ----------
        forced : for probes, ids that later drafts continue from in place of those drafted.
        """
        return run_alone(self._drafts(ids, count, forced))

    def _drafts(
        self, ids: Sequence[int], count: int, forced: Sequence[int] = ()
    ) -> DraftSteps[list[int]]:
        if not self._state().length():
            return []  # before a prompt of one token: a head drafts from the trunk's rows
        if self._streak is not None:
            self._streak = self._streak.after(ids[self._seen :])
            self._seen = len(ids)
        yield from self._catch_up(ids, leave=CHUNK_ROWS - 1)
        if self.head.style == CHAIN and self.task.executable not in WARM:
            yield from self._warm(ids)
        text, found = list(ids), list[int]()
        given: Mapping[str, Any] = {}
        for step in range(count if self.head.style == CHAIN else min(count, self.head.deepest)):
            token, given = yield from self._draft(text, step, given, step + 1 == count)
            found.append(token)
            text.append(forced[step] if step < len(forced) else token)
        self._forget_drafts(len(ids))
        return found

    def _warm(self, ids: Sequence[int]) -> DraftSteps[None]:
        """Feed a row that supplies its hidden row, and drop it.

        Backends prepare for what they have not been asked for yet; that belongs in a sequence's
        first round, which no account of times counts, and not in the first one of two drafts.
        """
        WARM.add(self.task.executable)
        state, entry = self._state(), self.head.entries[0]
        before, stop = state.length(entry), state.length()
        wants = (self._want(ids, stop), self._output)
        yield from self._feed(0, ids, stop, wants, self._given(None))
        self._rewind(entry, before)

    @property
    def _output(self) -> Named:
        return Named(self.head.output(0))

    def _given(self, row: RowResult | None) -> Mapping[str, Any]:
        """Return the inputs of a chain's row: the output of the row before, in place of the
        trunk's.
        """
        graph = self.task.executable.program.graphs[self.head.entries[0]]
        shape = graph.values[RECALLED].shape
        given = np.zeros(shape, F32) if row is None else np.asarray(row[self._output])
        return {RECALLED: given.reshape(shape)}

    def _catch_up(self, ids: Sequence[int], leave: int = 0) -> DraftSteps[None]:
        """Feed every module its final rows but the newest, which a draft begins with.

        Parameters
        ----------
        leave : so many rows may be left to be fed with the draft's own.
        """
        state = self._state()
        for depth, entry in enumerate(self.head.entries):
            stop = max(0, final_rows(len(ids), state.length(), depth) - 1)
            self._rewind(entry, stop)
            while state.length(entry) + leave < stop:
                yield from self._feed(depth, ids, min(state.length(entry) + CHUNK_ROWS, stop))

    def _draft(
        self, text: Sequence[int], step: int, given: Mapping[str, Any], last: bool
    ) -> DraftSteps[tuple[int, Mapping[str, Any]]]:
        """Draft one id; return it, and the inputs of the next row of a chain."""
        chained = self.head.style == CHAIN
        stop = self._state().length() + (step if chained else 0)
        want = self._want(text, stop)
        # The output is asked for by the last one too: backends prepare for each set of wants.
        wants = (want, self._output) if chained else (want,)
        row = yield from self._feed(0 if chained else step, text, stop, wants, given)
        return int(row[want]), self._given(row) if chained and not last else {}

    def _feed(
        self,
        depth: int,
        text: Sequence[int],
        stop: int,
        wants: tuple[Want, ...] = (),
        given: Mapping[str, Any] | None = None,
    ) -> DraftSteps[RowResult]:
        """Feed a module its next rows up to `stop`; return the last one's result.

        Parameters
        ----------
        text : known ids, and drafts behind them.
        given : what the last row supplies.
        """
        state, entry = self._state(), self.head.entries[depth]
        start = state.length(entry)
        rows = [
            Row(state, j, text[j + depth + 1], wants if j + 1 == stop else (), given or {})
            for j in range(start, stop)
        ]
        brought = yield ForwardRequest(self.task.executable, rows, entry)
        return brought[-1]

    def _want(self, text: Sequence[int], stop: int) -> Want:
        """Return the want of the draft after these ids, of a row before `stop`."""
        short = self._streak is not None and not self._streak.full
        return draft_want(self.task, text, len(text) - stop + 1, short)

    def _forget_drafts(self, ids: int) -> None:
        """Keep final rows only."""
        state = self._state()
        for depth, entry in enumerate(self.head.entries):
            self._rewind(entry, final_rows(ids, state.length(), depth))


class HeadDrafter:
    """Drafts by the head of the target's own program: `--draft mtp`."""

    def __init__(self, name: str = "mtp") -> None:
        self.name = name

    def open(self, task: Task) -> HeadDrafting:
        """Begin on a sequence.

        Raises
        ------
        RequestError : the program has no draft head.
        """
        return HeadDrafting(head_of(task.executable.program), task)
