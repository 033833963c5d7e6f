"""The producer protocols over executables: for a target alone, and for one with a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cortiq.backend import Executable, Named, State
from cortiq.backend.windows import goes_back
from cortiq.engine.radix_tree import common_prefix_length
from cortiq.engine.request import vocabulary_size
from cortiq.engine.session import Session
from cortiq.errors import RequestError
from cortiq.numerics.contract import Floats

LOGITS = Named("logits")


@dataclass(frozen=True)
class ProducerCheckpoint:
    """A moment of a producer's sequence; `snapshot` where it cannot go back without one."""

    length: int
    snapshot: object = None


class ExecutableProducer:
    """`LogitProducer` and `ChunkedPrefillRunner` over an executable, and what a target needs.

    Parameters
    ----------
    limit : positions the sequence may ever hold.
    """

    def __init__(self, executable: Executable, limit: int) -> None:
        self.executable, self.limit = executable, limit
        self.vocabulary = vocabulary_size(executable.program)
        self._goes_back = goes_back(executable)
        self._session = Session(executable, limit)
        self.fed: list[int] = []
        self._verified: tuple[int, list[int]] = (0, [])

    @property
    def state(self) -> State:
        """The sequence."""
        return self._session.state

    def reset(self) -> None:
        """Begin with an empty sequence."""
        self._session.__exit__(None)
        self._session = Session(self.executable, self.limit)
        self.fed, self._verified = [], (0, [])

    def close(self) -> None:
        """Free the sequence."""
        self._session.__exit__(None)

    def try_reuse_prefix(self, prompt: Sequence[int]) -> int:
        """Keep what the prompt shares with what was fed, and forget the rest."""
        shared = min(common_prefix_length(self.fed, prompt), len(prompt) - 1)
        self.rewind(max(0, shared))
        return len(self.fed)

    def session_slot_evicted(self) -> bool:
        """Return False: there is one sequence and no pool."""
        return False

    def rewind(self, length: int) -> None:
        """Go back to at most this many rows: fewer where the state cannot stop there."""
        if length < len(self.fed):
            self._session.length = self.state.rewind(length)
            del self.fed[self._session.length :]

    def produce(self, token: int, position: int) -> Floats:
        """Feed a token; return the logits of the next one."""
        return self.verify([token], position)[0]

    def produce_prefill(self, token: int, position: int) -> None:
        """Feed a token and compute no logits."""
        self._feed([token], position, every=False, wanted=False)

    def prefill_chunk(self, tokens: Sequence[int], start: int) -> Floats:
        """Feed a chunk; return the logits after its last token."""
        return self._feed(tokens, start, every=False)[-1]

    def prefill_chunk_with_status(
        self, tokens: Sequence[int], start: int, *, is_final_prompt_chunk: bool
    ) -> Floats | None:
        """Feed a chunk; return its last logits if it ends the prompt."""
        if is_final_prompt_chunk:
            return self.prefill_chunk(tokens, start)
        self._feed(tokens, start, every=False, wanted=False)
        return None

    def verify(self, feed: Sequence[int], base: int) -> Floats:
        """Feed ids in one batch; return the logits after each."""
        rows = self._feed(feed, base, every=True)
        self._verified = base, list(feed)
        return rows

    def _feed(self, ids: Sequence[int], start: int, *, every: bool, wanted: bool = True) -> Floats:
        if not ids:
            raise RequestError("an empty chunk of tokens")
        if start != len(self.fed):
            raise RequestError(
                f"the sequence has {len(self.fed)} rows, tokens for position {start} came",
                hint="rewind, or feed what lies between",
            )
        pending = self._session.feed(ids, (LOGITS,) if wanted else (), every=every)
        rows = self._session.read_rows(pending)
        self.fed.extend(ids)
        return np.array([row[LOGITS] for row in rows if LOGITS in row])

    def checkpoint(self) -> ProducerCheckpoint:
        """Note the length; take a snapshot only where rewinding would not do."""
        return ProducerCheckpoint(len(self.fed), None if self._goes_back else self.state.snapshot())

    def rollback(self, point: ProducerCheckpoint) -> None:
        """Restore the sequence."""
        if point.snapshot is not None:
            self.state.restore(point.snapshot)
        else:
            self.state.rewind(point.length)
        self._session.length = point.length
        del self.fed[point.length :]

    def rollback_retaining(self, point: ProducerCheckpoint, keep_rows: int) -> None:
        """Keep the first rows of the last verify: rewound to, or fed again after the snapshot."""
        base, feed = self._verified
        if base != point.length or not 0 <= keep_rows <= len(feed):
            raise RequestError(
                f"{keep_rows} rows after position {point.length} are to stay; the last verify"
                f" had {len(feed)} from {base}"
            )
        if point.snapshot is None:
            self.rewind(base + keep_rows)
        else:
            self.rollback(point)
            if keep_rows:
                self._feed(feed[:keep_rows], base, every=False, wanted=False)
        self._verified = 0, []


class DraftedProducer(ExecutableProducer):
    """`SpeculativeProducer`: a target, and a draft model with a sequence of its own.

    The draft model at `position` has seen the ids up to it, as the target has: it is primed with
    what was fed to the target, and its step returns the logits of position + 1.
    """

    def __init__(self, executable: Executable, drafter: Executable, limit: int) -> None:
        super().__init__(executable, limit)
        self.drafter = ExecutableProducer(drafter, limit)

    def reset(self) -> None:
        """Begin with two empty sequences."""
        super().reset()
        self.drafter.reset()

    def close(self) -> None:
        """Free both sequences."""
        super().close()
        self.drafter.close()

    def prime_drafter(self, token: int, position: int) -> None:
        """Feed the draft model the target's id at `position`, which `token` follows."""
        self.drafter.produce_prefill(self.fed[position], position)

    def supports_chunked_drafter_prefill(self) -> bool:
        """Return True: a draft model takes chunks like any other."""
        return True

    def prefill_chunk_priming_drafter(
        self, tokens: Sequence[int], start: int, next_token: int | None
    ) -> Floats:
        """Feed both; of a prompt's end the draft model gets all but the last id."""
        rows = self.prefill_chunk(tokens, start)
        known = list(tokens) if next_token is not None else list(tokens[:-1])
        if known:
            last = next_token is None
            self.drafter.prefill_chunk_with_status(known, start, is_final_prompt_chunk=last)
        return rows

    def draft_step(self, token: int, position: int) -> Floats:
        """Feed the draft model; return its logits."""
        return self.drafter.produce(token, position)

    def drafts_block_passes(self) -> bool:
        """Return False: it drafts step by step."""
        return False

    def draft_block(self, anchor: int, base: int, count: int) -> Sequence[int]:
        """Raise: a draft model drafts step by step."""
        raise RequestError("a draft model drafts step by step", hint="call draft_step")

    def rewind_drafter(self, position: int) -> None:
        """Let the draft model forget ids from `position` on, or from before where it must."""
        self.drafter.rewind(position)

    def supports_headless_prefill(self) -> bool:
        """Return True: a draft model reads ids, not hidden states."""
        return True

    def supports_retaining_rollback(self) -> bool:
        """Return True: every executable can keep rows."""
        return True

    def record_committed(self, tokens: Sequence[int], start: int) -> None:
        """Check that the rows kept are those of the committed ids: they are reused by what was fed.

        Raises
        ------
        RequestError : the state holds other ids there.
        """
        held = self.fed[start : start + len(tokens)]
        if held != list(tokens):
            raise RequestError(f"ids {held} are held from position {start}, not {list(tokens)}")
