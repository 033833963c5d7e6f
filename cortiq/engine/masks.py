"""Masks that callers give: which ids may follow a text, checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from cortiq.errors import RequestError
from cortiq.numerics.contract import Floats
from cortiq.numerics.masks import Mask, mask_fault

Masks = Callable[[Sequence[int]], Mask | None]
"""From the ids so far, prompt and drafted ones included, to the mask of the next; None allows all.

It is called for every row, in any order, and some rows are dropped: it must depend on the ids
alone. It is never called with ids that an earlier mask of its own excluded, prompts aside.
"""


class BatchedMasks(ABC):
    """Masks of a kind that computes those of a whole batch at once, by threads of its own."""

    @abstractmethod
    def __call__(self, ids: Sequence[int]) -> Mask | None:
        """Return the mask of the token after these ids; None allows all."""

    @classmethod
    @abstractmethod
    def prepare(cls, asked: Sequence[tuple[Self, Sequence[int]]]) -> None:
        """Compute together what each returns when it is called with its ids next.

        None is given twice. An error ends the sequences whose masks these are.
        """


class LogitMasks(ABC):
    """Masks that a row's logits narrow: its token is drawn again, on the host, with the bits that a
    backend would draw with that mask. The probability of a token is then among the allowed ids.
    """

    @abstractmethod
    def __call__(self, ids: Sequence[int]) -> Mask | None:
        """Return the mask of the token after these ids, whatever the logits; None allows all."""

    @abstractmethod
    def narrowed(self, ids: Sequence[int], logits: Floats) -> Mask:
        """Return the mask of the token after these ids, given the logits that it is drawn from."""


class CheckedMasks:
    """Masks of which each is checked as it is returned."""

    def __init__(self, masks: Masks, vocabulary: int) -> None:
        self.masks, self.vocabulary = masks, vocabulary

    def __call__(self, ids: Sequence[int]) -> Mask | None:
        """Return the mask of the token after these ids.

        Raises
        ------
        RequestError : it has another size or kind, or allows nothing.
        """
        mask = self.masks(ids)
        return None if mask is None else self.checked(mask)

    def checked(self, mask: Mask) -> Mask:
        """Return a mask; RequestError where it has another size or kind, or allows nothing."""
        fault = mask_fault(mask, self.vocabulary)
        if fault:
            hint = "cortiq.numerics.masks.mask_of makes one of the ids that are allowed"
            raise RequestError(fault, where="masks", hint=hint)
        return mask


def batched(masks: Masks | None) -> BatchedMasks | None:
    """Return the masks, without their check, if they are of a kind that is computed together."""
    own = masks.masks if isinstance(masks, CheckedMasks) else masks
    return own if isinstance(own, BatchedMasks) else None


def narrowing(masks: Masks | None) -> LogitMasks | None:
    """Return the masks, without their check, if a row's logits narrow them."""
    own = masks.masks if isinstance(masks, CheckedMasks) else masks
    return own if isinstance(own, LogitMasks) else None


def prepare_masks(
    asked: Iterable[tuple[BatchedMasks, Sequence[int]]],
) -> dict[BatchedMasks, Exception]:
    """Compute together the next masks of several requests, kind by kind; return the errors.

    Masks that several requests share are prepared for the first of them.
    """
    kinds: dict[type[BatchedMasks], dict[BatchedMasks, Sequence[int]]] = {}
    for masks, ids in asked:
        kinds.setdefault(type(masks), {}).setdefault(masks, ids)
    failed: dict[BatchedMasks, Exception] = {}
    for kind, several in kinds.items():
        try:
            kind.prepare([*several.items()])
        except Exception as error:
            failed |= dict.fromkeys(several, error)
    return failed
