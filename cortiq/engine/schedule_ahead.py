"""Batches submitted before the one in flight is read, and the masks that they wait for."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import cast

from cortiq.backend import Executable, LateTicket
from cortiq.engine.in_flight import InFlightBatch
from cortiq.engine.masks import prepare_masks
from cortiq.engine.sequence import Sequence
from cortiq.numerics.masks import Mask


def runs_ahead(executable: Executable, running: Several[Sequence]) -> bool:
    """Return whether a batch can be submitted before the one in flight is read.

    The reason why it cannot is counted in the statistics of every running sequence. Masks may be
    no reason: they can be supplied while logits are computed (`is_late`).
    """
    if not executable.asynchronous:
        return False
    waits = any(sequence.waits_for_drafts for sequence in running)
    if waits:
        note_wait("drafts", running)
    return not waits


def note_wait(reason: str, running: Several[Sequence]) -> None:
    """Count a step that could not be submitted ahead."""
    for sequence in running:
        sequence.stats.waited[reason] += 1


def supply_masks(batch: InFlightBatch) -> None:
    """Give a batch in flight the masks that depend on what the one before it drew."""
    late = [rows.sequence for rows in batch.late]
    prepare_masks((one.request.masks, one.ids) for one in late if not one.done)
    masks = [late_mask(sequence) for sequence in late]
    cast(LateTicket, batch.ticket).supply(masks)


def late_mask(sequence: Sequence) -> Mask | None:
    """Return the mask after a sequence's ids, for a draw that waits for it; none where the sequence
    has ended. Masks that raise end it before the next step.
    """
    masks = sequence.request.masks
    if masks is None or sequence.done:
        return None
    try:
        return masks(sequence.ids)
    except Exception as error:
        sequence.error = error
        sequence.cancel()
        return None
