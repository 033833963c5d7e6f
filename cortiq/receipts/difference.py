"""Differences between a receipt and what was computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cortiq.errors import shown

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Difference:
    """A statement of a receipt that was found wrong.

    Attributes
    ----------
    field : of the receipt's claim, such as `token_ids` or `options.seed`; or `signature`.
    step : index of the draw, from 0, if it is about one.
    claimed, found : the receipt's value and the recomputed one.
    sentence : the difference in words.
    """

    field: str
    sentence: str
    step: int | None = None
    claimed: Any = None
    found: Any = None

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Verification:
    """The result of verifying a receipt; true if everything was identical.

    Attributes
    ----------
    differences : all differences; the first one that recomputation met comes first, and nothing was
        computed after it.
    steps : draws found identical, in order from the first.
    backend, device : those that recomputed them; empty if nothing was recomputed.
    seconds : duration of the recomputation.
    signed_by : public key of a valid signature, in hex; empty without one.
    """

    differences: tuple[Difference, ...]
    steps: int = 0
    backend: str = ""
    device: str = ""
    seconds: float = 0.0
    signed_by: str = ""

    @property
    def identical(self) -> bool:
        """Whether all of the claim was recomputed and nothing differed."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.identical


def field_difference(name: str, claimed: Any, found: Any) -> Difference:
    """Return the difference of a field that has no steps."""
    sentence = f"{name} is {shown(found)}, the receipt says {shown(claimed)}"
    return Difference(name, sentence, None, claimed, found)
