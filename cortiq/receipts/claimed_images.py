"""Images of a claim: held against the given ones, and fed with the rows that see them whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cortiq.engine.overlay import session_inputs
from cortiq.engine.prompt_images import ImageSpan
from cortiq.engine.request import Request
from cortiq.errors import RequestError
from cortiq.receipts.difference import Difference, field_difference
from cortiq.receipts.record import Claim

if TYPE_CHECKING:
    from cortiq.model.model import Model


def whole_chunks(request: Request, start: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of chunks of at most so many rows; none cuts an image's that see all."""
    while start < stop:
        end = min(start + rows, stop)
        if request.images is not None and end < stop:
            end = start + request.images.whole_rows(start, end - start)
        yield start, end
        start = end


def supplied_rows(request: Request, start: int, end: int) -> list[Mapping[str, Any]] | None:
    """Return what rows supply, of an image or for an overlay; None for nothing."""
    if not request.supplies and request.overlay is None:
        return None
    overlay = session_inputs(request.overlay)
    return [{**overlay, **request.inputs(at)} for at in range(start, end)]


def claimed_images(
    model: Model, claim: Claim, media: Sequence[tuple[str, Any]]
) -> tuple[ImageSpan, ...] | Difference:
    """Return a claim's images and sounds at their places, or how the given ones differ from them.

    Parameters
    ----------
    media : each with its medium, those of one medium in the order of the claim.

    Raises
    ------
    RequestError : as many as the claim names are not given, or one cannot be read.
    """
    if len(media) != len(claim.images):
        medium, things = model.senses.named()
        what = f"the receipt is about {len(claim.images)} {things}, {len(media)} are given"
        hint = f"cortiq verify RECEIPT MODEL --{medium} FILE, in their order"
        raise RequestError(what, where=medium, hint=hint)
    made = model.senses.prepared(media, model.name)
    found = tuple(one.digest for one in made)
    if sorted(found) != sorted(claim.images):
        return field_difference("images", claim.images, found)
    try:
        spans = model.senses.placed(claim.prompt_ids, made).spans
    except RequestError as error:
        if found != claim.images and len({medium for medium, _ in media}) == 1:  # in another order
            return field_difference("images", claim.images, found)
        return Difference("prompt_ids", f"prompt_ids: {error.what}")
    found = tuple(span.digest for span in spans)
    return spans if found == claim.images else field_difference("images", claim.images, found)
