"""Protocols of a foreign generation loop: what such a loop needs of a model.

`target.ExecutableProducer` offers them over any executable, `scripted.ScriptedProducer` without
one. Positions are absolute, ids are ints, a row of logits is float32 [vocabulary]. Our own loop
(`cortiq.engine.Engine`) needs none of this: it asks executables for rows, and lets them draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cortiq.numerics.contract import Floats

Point = Any
"""What `checkpoint` returns: opaque, of the producer that made it."""


class LogitProducer(Protocol):
    """One token in, the logits of the next one out."""

    @property
    def vocabulary(self) -> int:
        """Length of a row of logits."""
        ...

    def reset(self) -> None:
        """Drop everything the generation left behind."""
        ...

    def try_reuse_prefix(self, prompt: Sequence[int]) -> int:
        """Reuse the state of the first ids of a prompt; return how many of them, 0 for none.

        This commits: a state that ran past the prefix has gone back when it returns. Only ids
        actually fed count, and never what ids do not describe (embedding rows). At least the last
        id of the prompt is left to be fed, since its row has the logits that are wanted.
        """
        ...

    def session_slot_evicted(self) -> bool:
        """Return whether the last generation evicted another conversation's state."""
        ...

    def produce(self, token: int, position: int) -> Floats:
        """Feed a token; return the logits of the next one."""
        ...

    def produce_prefill(self, token: int, position: int) -> None:
        """Feed a prompt token whose logits nobody reads; what it leaves behind is `produce`'s."""
        ...


class ChunkedPrefillRunner(Protocol):
    """A prompt in chunks: the same bits as one token after the other."""

    def prefill_chunk(self, tokens: Sequence[int], start: int) -> Floats:
        """Feed a chunk; return the logits after its last token."""
        ...

    def prefill_chunk_with_status(
        self, tokens: Sequence[int], start: int, *, is_final_prompt_chunk: bool
    ) -> Floats | None:
        """Feed a chunk; return logits only for the last one of the prompt."""
        ...


class SpeculativeProducer(Protocol):
    """A target and a drafter, each with its own sequence at its own position.

    After a round the target goes back to where it began and keeps what held; the drafter goes to
    where the accepted ids end, and on. Whoever calls it accepts.
    """

    def prime_drafter(self, token: int, position: int) -> None:
        """Let the drafter see that `token` follows `position`; nobody reads its logits.

        Leaving it out is no error: the drafter is then right less often.
        """
        ...

    def supports_chunked_drafter_prefill(self) -> bool:
        """Return whether to use `prefill_chunk_priming_drafter` for prompts."""
        ...

    def prefill_chunk_priming_drafter(
        self, tokens: Sequence[int], start: int, next_token: int | None
    ) -> Floats:
        """Feed a chunk, and prime the drafter at every position whose next token is known.

        Parameters
        ----------
        next_token : what follows the chunk; None at the end of the prompt.
        """
        ...

    def draft_step(self, token: int, position: int) -> Floats:
        """Feed the drafter; return its logits, to be shaped and drawn from as the target's are."""
        ...

    def drafts_block_passes(self) -> bool:
        """Return whether the drafter proposes whole blocks (`draft_block`) instead of steps."""
        ...

    def draft_block(self, anchor: int, base: int, count: int) -> Sequence[int]:
        """Propose ids for the positions base + 1 to base + count, after the committed `anchor`."""
        ...

    def rewind_drafter(self, position: int) -> None:
        """Move the drafter to the end of the accepted prefix."""
        ...

    def checkpoint(self) -> Point:
        """Note the target's state."""
        ...

    def rollback(self, point: Point) -> None:
        """Restore the target; the drafter stays as it is."""
        ...

    def supports_headless_prefill(self) -> bool:
        """Return whether `produce_prefill` leaves what the drafter reads."""
        ...

    def record_committed(self, tokens: Sequence[int], start: int) -> None:
        """Note ids that a round committed and its verify fed: a later turn may reuse them."""
        ...

    def supports_retaining_rollback(self) -> bool:
        """Return whether `rollback_retaining` is supported."""
        ...

    def rollback_retaining(self, point: Point, keep_rows: int) -> None:
        """Roll back, but keep the first rows of the last verify, as if they alone were fed.

        The bonus token was not fed yet and does not count.

        Raises
        ------
        RequestError : the last verify did not start at this point, or had fewer rows.
        """
        ...

    def verify(self, feed: Sequence[int], base: int) -> Floats:
        """Feed the target; row i of the result has the logits after feed[i]."""
        ...
