"""Masks that callers give: which ids may follow a text, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cortiq.errors import RequestError
from cortiq.numerics.masks import Mask, mask_fault

Masks = Callable[[Sequence[int]], Mask | None]
"""From the ids so far, prompt and drafted ones included, to the mask of the next; None allows all.

It is called for every row, in any order, and some rows are dropped: it must depend on the ids
alone. It is never called with ids that an earlier mask of its own excluded, prompts aside.
"""


def checked_masks(masks: Masks, vocabulary: int) -> Masks:
    """Wrap masks; RequestError for one of another size or kind, or that allows nothing."""

    def asked(ids: Sequence[int]) -> Mask | None:
        mask = masks(ids)
        fault = "" if mask is None else mask_fault(mask, vocabulary)
        if fault:
            hint = "cortiq.numerics.masks.mask_of makes one of the ids that are allowed"
            raise RequestError(fault, where="masks", hint=hint)
        return mask

    return asked
