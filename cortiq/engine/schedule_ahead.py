"""Batches submitted before the one in flight is read, and the masks that they wait for."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from collections.abc import Sequence as Several
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from cortiq.backend import Executable, LateTicket
from cortiq.engine.in_flight import InFlightBatch
from cortiq.engine.masks import BatchedMasks, batched, prepare_masks
from cortiq.engine.sequence import Sequence
from cortiq.engine.session import RowResult
from cortiq.numerics.masks import Mask


def runs_ahead(executable: Executable, running: Several[Sequence]) -> bool:
    """Return whether a batch can be submitted before the one in flight is read.

    The reason why it cannot is counted in the statistics of every running sequence. Masks may be
    no reason: they can be supplied while logits are computed (`is_late`).
    """
    if not executable.asynchronous or any(sequence.lacks_encoded for sequence in running):
        return False
    if not any(s.waits_for_drafts or s.request.narrowing is not None for s in running):
        return True
    if any(sequence.waits_for_drafts for sequence in running):
        note_wait("drafts", running)
    if any(sequence.request.narrowing is not None for sequence in running):
        note_wait("logits", running)
    return False


def note_wait(reason: str, running: Several[Sequence]) -> None:
    """Count a step that could not be submitted ahead."""
    for sequence in running:
        sequence.stats.waited[reason] += 1


PREPARED = 64
"""Masks from which on a thread prepares them: fewer are made within a step, and waking the threads
of a grammar library costs more than it gains (measured on an H200's host with 16 and 32)."""


class MaskThread:
    """Prepares the masks of a batch in flight while what the one before it drew is committed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: Future[dict[BatchedMasks, Exception]] | None = None

    def start(
        self, batch: InFlightBatch | None, before: InFlightBatch, rows: Rows[RowResult]
    ) -> None:
        """Begin with the masks after what the batch before drew, if there are some to be made.

        Parameters
        ----------
        rows : results of the batch before.
        """
        if batch is None or len(batch.late) < PREPARED:
            return
        asked = []
        for late in batch.late:
            masks = batched(late.sequence.request.masks)
            drew = before.rows_of(late.sequence) if masks is not None else None
            if masks is not None and drew is not None and drew.draws:
                at = drew.drawing[-1]
                if row := rows[at]:
                    token = int(row[before.rows[at].wants[0]])
                    asked.append((masks, [*late.sequence.ids, token]))
        if len(asked) < PREPARED:
            return
        self._pool = self._pool or ThreadPoolExecutor(1, "masks")
        self._under_way = self._pool.submit(prepare_masks, asked)

    def supply(self, batch: InFlightBatch) -> None:
        """Give a batch in flight the masks that depend on what the one before it drew."""
        waiting, self._under_way = self._under_way, None
        failed = {} if waiting is None else waiting.result()
        masks = [late_mask(rows.sequence, failed) for rows in batch.late]
        cast(LateTicket, batch.ticket).supply(masks)

    def close(self) -> None:
        """End the thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def late_mask(sequence: Sequence, failed: Mapping[BatchedMasks, Exception]) -> Mask | None:
    """Return the mask after a sequence's ids, for a draw that waits for it; none where the sequence
    has ended. Masks that raise end it before the next step.

    Parameters
    ----------
    failed : masks that could not be prepared, and why: their state is not known.
    """
    masks = sequence.request.masks
    if masks is None or sequence.done:
        return None
    try:
        if failed and (own := batched(masks)) in failed:
            raise failed[cast(BatchedMasks, own)]
        return masks(sequence.ids)
    except Exception as error:
        sequence.error = error
        sequence.cancel()
        return None
