"""`SpeculativeProducer` over a program's own draft head, for loops that aren't ours.

Row `position` of the head takes the target's hidden row of that position and the token that follows
it, and its logits are for the token after that. Rows go on one by one from 0; where the target has
no row yet, the head's own output of the row before takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cortiq.backend import Batch, Executable, Named, Row
from cortiq.backend.error_attribution import failure_hint
from cortiq.engine.drafters.heads import head_of
from cortiq.engine.session import check_outcome
from cortiq.errors import RequestError
from cortiq.ir import Program
from cortiq.ir.heads import CHAIN, RECALLED, DraftHead
from cortiq.numerics.contract import Floats
from cortiq_producers.target import ExecutableProducer


def speculation_blocker(program: Program) -> str | None:
    """Return why a program cannot draft with a head of its own; None if it can."""
    head = program.facts.get("draft_head")
    if not isinstance(head, DraftHead):
        return "the program was compiled without a draft head"
    if head.style != CHAIN:
        return f"its draft head is a {head.style}, which drafts a round at a time"
    return None


class HeadProducer(ExecutableProducer):
    """A target and its head, which drafts step by step on the target's own sequence.

    Raises
    ------
    RequestError : the program has no head that drafts step by step.
    """

    def __init__(self, executable: Executable, limit: int) -> None:
        blocker = speculation_blocker(executable.program)
        if blocker is not None:
            raise RequestError(blocker, where="draft", hint="load the model with heads='mtp'")
        super().__init__(executable, limit)
        self.head = head_of(executable.program)
        (self.entry,) = self.head.entries
        self._own: tuple[int, Floats] | None = None

    def mtp_draft_depth(self) -> int:
        """Return the depth that the head was made for; its chain may go deeper."""
        return self.head.deepest

    def mtp_kv_position(self) -> int:
        """Return the number of rows that the head holds."""
        return self.state.length(self.entry)

    def prime_drafter(self, token: int, position: int) -> None:
        """Feed the head the target's row of `position` and the token after it; no logits."""
        self._step([token], position, ())

    def supports_chunked_drafter_prefill(self) -> bool:
        """Return True: chunks are primed in one pass."""
        return True

    def prefill_chunk_priming_drafter(
        self, tokens: Sequence[int], start: int, next_token: int | None
    ) -> Floats:
        """Feed the target a chunk, and the head every row of it whose next token is known."""
        self._check_cursor(start)
        rows = self.prefill_chunk(tokens, start)
        following = [*tokens[1:], *([] if next_token is None else [next_token])]
        if following:
            self._step(following, start, ())
        return rows

    def draft_step(self, token: int, position: int) -> Floats:
        """Feed the head; return its logits, for position + 2."""
        return self.stages(token, position, ("logits",))["logits"]

    def stages(self, token: int, position: int, names: Sequence[str] = ()) -> dict[str, Any]:
        """Return a step's values by name, for comparisons; without names, all of the graph."""
        graph = self.executable.program.graphs[self.entry]
        chosen = names or [n for node in graph.nodes for n in node.outputs]
        output = self.head.output(0)
        wants = tuple(Named(name) for name in dict.fromkeys((*chosen, output)))
        row = self._step([token], position, wants)
        self._own = position, np.asarray(row[Named(output)])
        return {name: row[Named(name)] for name in chosen}

    def _step(self, tokens: Sequence[int], position: int, wants: tuple[Named, ...]) -> Any:
        self._check_cursor(position)
        executable, state = self.executable, self.state
        given = {} if position < state.length() else self._carried(position)
        last = position + len(tokens) - 1
        rows = [
            Row(state, position + i, token, wants if position + i == last else (), given)
            for i, token in enumerate(tokens)
        ]
        result = executable.forward(Batch(rows, self.entry)).result()
        check_outcome(result.outcomes[state], last, failure_hint(executable))
        return result.rows[-1]

    def _carried(self, position: int) -> dict[str, Any]:
        """Return the head's output of the row before, for a position the target has not read."""
        before, output = self._own or (-1, None)
        if before != position - 1 or output is None:
            raise RequestError(
                f"the target has read {self.state.length()} rows, the head's step is at {position}",
                hint="let the target read that position, or draft the position before",
            )
        shape = self.executable.program.graphs[self.entry].values[RECALLED].shape
        return {RECALLED: output.reshape(shape)}

    def _check_cursor(self, position: int) -> None:
        """Check that the head holds exactly the rows before a step."""
        held = self.mtp_kv_position()
        if held != position:
            remedy = "prime it over what lies between" if held < position else "rewind it first"
            raise RequestError(
                f"the head holds {held} rows, the step is at position {position}", hint=remedy
            )

    def rewind_drafter(self, position: int) -> None:
        """Let the head forget the rows from `position` on.

        Raises
        ------
        RequestError : it has not come so far.
        """
        held = self.mtp_kv_position()
        if position > held:
            raise RequestError(
                f"the head holds {held} rows and cannot go back to {position}",
                hint="prime it over what lies between",
            )
        self.state.rewind(position, self.entry)

    def drafts_block_passes(self) -> bool:
        """Return False: it drafts step by step."""
        return False

    def draft_block(self, anchor: int, base: int, count: int) -> Sequence[int]:
        """Raise: a draft head drafts step by step."""
        raise RequestError("a draft head drafts step by step", hint="call draft_step")

    def supports_headless_prefill(self) -> bool:
        """Return True: the target keeps its hidden rows with or without logits."""
        return True

    def supports_retaining_rollback(self) -> bool:
        """Return True: every executable can keep rows."""
        return True

    def record_committed(self, tokens: Sequence[int], start: int) -> None:
        """Check that the rows kept are those of the committed ids."""
        held = self.fed[start : start + len(tokens)]
        if held != list(tokens):
            raise RequestError(f"ids {held} are held from position {start}, not {list(tokens)}")
