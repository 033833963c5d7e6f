"""Images in a prompt: the rows that stand in for ids, what rows see of one another, and keys."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from cortiq.backend import Drawn, State
from cortiq.engine.prompt_embeddings import check_row
from cortiq.engine.prompt_encoded import EncodedPrompt
from cortiq.errors import RequestError, shown
from cortiq.ir import Program
from cortiq.ir.encoded import ENCODED
from cortiq.ir.images import IMAGES, TEXT_IDS, ImageRows, image_rows
from cortiq.numerics.contract import Floats

NO_GRID = (0, 0)
Positions = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ImageSpan:
    """An image in a prompt.

    Attributes
    ----------
    places : positions of its rows, ascending.
    make : computes its rows; called when a sequence is submitted, on the engine's thread.
    digest : SHA-256, in hex, of the image as the model sees it.
    grid : height and width in rows, for positions on several axes; none where they are a text's.
        Of an image whose rows stand beside the text, in tiles; its one place is that of its token.
    medium : `image`, or `audio` for a sound.
    turned : the place of a token, and positions of it and of those after it on every axis, int32
        [tokens, axes], counted from where it is; None for those of the grid.
    """

    places: tuple[int, ...]
    make: Callable[[], Floats]
    digest: str
    grid: tuple[int, int] = NO_GRID
    medium: str = "image"
    turned: tuple[int, Positions] | None = field(default=None, compare=False)

    @property
    def tiles(self) -> int:
        """Tiles of an image whose rows stand beside the text."""
        return self.grid[0] * self.grid[1]

    @cached_property
    def rows(self) -> Floats:
        """Its rows, float32 [rows, width]; with rows of layers side by side, a width each."""
        return self.make()

    def positions(self, axes: int) -> tuple[int, Positions] | None:
        """Return `turned`: by default an image's rows have the position where it begins, and with
        the row and the column of its grid added; None where they are a text's.
        """
        if self.turned is not None or self.grid == NO_GRID:
            return self.turned
        found, rows = np.zeros((len(self.places), axes), np.int32), np.arange(len(self.places))
        found[:, 1], found[:, 2] = np.divmod(rows, self.grid[1])
        return self.places[0], found


@dataclass(frozen=True, eq=False)
class PromptImages:
    """Values that the rows of a prompt supply because of its images, and those after it.

    Attributes
    ----------
    given : what the program's rows supply. length : ids of the prompt.
    spans : images, in the order of their places.
    """

    given: ImageRows
    length: int
    spans: tuple[ImageSpan, ...] = ()

    @cached_property
    def _owners(self) -> dict[int, tuple[ImageSpan, int]]:
        """Image and number of its row, by position."""
        return {at: (span, n) for span in self.spans for n, at in enumerate(span.places)}

    @cached_property
    def _ends(self) -> dict[int, tuple[int, int]]:
        """First and last position of the neighbouring rows of an image that a row belongs to."""
        ends: dict[int, tuple[int, int]] = {}
        for span in self.spans:
            first = span.places[0]
            for at, after in zip(span.places, (*span.places[1:], -1), strict=True):
                if after != at + 1:
                    ends |= dict.fromkeys(range(first, at + 1), (first, at))
                    first = after
        return ends

    @cached_property
    def _axes(self) -> tuple[Positions, int]:
        """Positions on every axis, and what is added to the position of a row after the prompt.

        A text's row has one position on every axis. The text goes on after the largest position of
        an image; none is below 0.
        """
        axes = np.empty((self.length, self.given.axes), np.int32)
        now, at = 0, 0
        starts = dict(filter(None, (span.positions(self.given.axes) for span in self.spans)))
        while at < self.length:
            own = starts.get(at, np.zeros((1, self.given.axes), np.int32))
            axes[at : at + len(own)] = np.maximum(now + own, 0)
            now, at = now + int(own.max()) + 1, at + len(own)
        return axes, now - self.length

    @cached_property
    def _tiles(self) -> list[tuple[int, int, int]]:
        """Place of each image beside the text, and the tiles that rows from there on see, the
        first and the one after the last: those of the image, and of others whose tokens are the
        neighbours before its own.
        """
        found: list[tuple[int, int, int]] = []
        stop = 0
        for span in self.spans:
            (at,) = span.places
            first = found[-1][1] if found and found[-1][0] == at - 1 else stop
            stop += span.tiles
            found.append((at, first, stop))
        return found

    @cached_property
    def attended(self) -> EncodedPrompt | None:
        """Rows beside the text, of all its images; None where there are none."""
        if not (self.given.tile and self.spans):
            return None
        digest = sha256("".join(span.digest for span in self.spans).encode()).hexdigest()
        count = self._tiles[-1][2] * self.given.tile
        made = self.spans
        return EncodedPrompt(count, lambda: np.concatenate([s.rows for s in made]), digest)

    def reuse(self, state: State, rows: int) -> None:
        """Forget what a state has beside its first rows of images whose tokens are not there."""
        if self.given.tile:
            at = bisect_right(self._tiles, rows - 1, key=lambda tiles: tiles[0])
            kept = self._tiles[at - 1][2] * self.given.tile if at else 0
            state.rewind(min(kept, state.length(ENCODED)), ENCODED)

    def _turned(self, position: int) -> npt.NDArray[np.int32]:
        """Return the positions of a row on every axis."""
        known, more = self._axes
        if position < self.length:
            return known[position]
        return np.full(self.given.axes, position + more, np.int32)

    def inputs(self, position: int) -> dict[str, np.ndarray]:
        """Return what the row at a position supplies."""
        last = self._ends[position][1] if self.given.last and position in self._ends else None
        found = self.given.inputs(position, last, self._turned if self.spans else None)
        if self.given.tile:
            at = bisect_right(self._tiles, position, key=lambda tiles: tiles[0])
            return found | (self.given.beside(*self._tiles[at - 1][1:]) if at else {})
        if position in self._owners:
            span, number = self._owners[position]
            found |= self.given.parts(span.rows[number])
        return found

    def fed(self, position: int, token: int | Drawn) -> int | Drawn:
        """Return the id that the row at a position is fed as where the sequence has `token`."""
        given = self.given.token
        return token if given is None or position not in self._owners else given

    def whole_rows(self, start: int, rows: int) -> int:
        """Return how many rows from `start` on a batch takes, of at most so many: none is cut off
        from one that it sees. They are more where the first ones would be.
        """
        first, last = self._ends.get(start + rows, (0, 0)) if self.given.last else (0, 0)
        if not first < start + rows <= last:
            return rows
        return first - start if first > start else last + 1 - start

    def keys(self, ids: Sequence[int]) -> list[int]:
        """Return ids by which a prefix is found: an image's rows have its digest in their place,
        and tokens whose positions it decides both.
        """
        keys = list(ids)
        for span in self.spans:
            digest = int(span.digest, 16)
            first, own = span.turned or (0, ())
            for at in range(first, min(first + len(own), len(keys))):
                keys[at] = digest ^ (1 + ids[at])
            for at in span.places:
                if at < len(keys):
                    keys[at] = digest
        return keys


def check_images(images: PromptImages | None, tokens: int, program: Program) -> None:
    """Check that the images of a prompt are rows of the program, at places of the prompt.

    Raises
    ------
    RequestError : they are not, or the program sees no images.
    """
    if images is None:
        return
    if images.spans and IMAGES not in program.facts:
        hint = "load it with images=True, --images"
        raise RequestError("the model was not loaded to see images", where="image", hint=hint)
    if images.length != tokens:
        raise RequestError(f"the images are for {images.length} ids", where="image")
    for span in images.spans:
        inside = span.places and span.places[0] >= 0 and span.places[-1] < tokens
        if not inside or list(span.places) != sorted(set(span.places)):
            raise RequestError("an image's rows are not at places of the prompt", where="image")
    _check_tiles(images)


def _check_tiles(images: PromptImages) -> None:
    """Check that images beside the text have a place each, and are not too many."""
    most = images.given.tiles
    if not images.given.tile:
        return
    if any(len(span.places) != 1 or span.tiles < 1 for span in images.spans):
        raise RequestError("an image has one place in the prompt", where="image")
    count = sum(span.tiles for span in images.spans)
    if count > most:
        hint = "give fewer or smaller ones"
        raise RequestError(f"images of {count} tiles: at most {most}", where="image", hint=hint)


def check_text_ids(prompt: Sequence[int], images: PromptImages | None, program: Program) -> None:
    """Check that ids which only an image or a sound has stand at the places of one.

    Raises
    ------
    RequestError : one stands in the text.
    """
    count = program.facts.get(TEXT_IDS)
    if count is None:
        return
    owned = {at for span in images.spans for at in span.places} if images is not None else set()
    for at, token in enumerate(prompt):
        if token >= count and at not in owned:
            what = f"token id {shown(token)} is a part of an image or a sound, not of a text"
            hint = f"give the image or the sound itself; a text's ids are below {count}"
            raise RequestError(what, where=f"prompt, position {at}", hint=hint)


def compute_rows(images: PromptImages | None, program: Program) -> None:
    """Compute the rows of a prompt's images, and check them."""
    given = image_rows(program)
    for span in images.spans if images is not None else ():
        count = span.tiles * given.tile or len(span.places)
        check_row(span.rows, count, program, given.deep)


def computed_images(
    images: PromptImages | None, prompt: Sequence[int], program: Program
) -> PromptImages | None:
    """Return the images of a prompt, checked, their rows computed; `no_images` where none are."""
    check_images(images, len(prompt), program)
    check_text_ids(prompt, images, program)
    compute_rows(images, program)
    return images or no_images(program, len(prompt))


def no_images(program: Program, tokens: int) -> PromptImages | None:
    """Return what rows of a text supply where the trunk sees images; None where nothing."""
    given = image_rows(program)
    return PromptImages(given, tokens) if given.supplies else None


def with_spans(
    images: PromptImages | None, program: Program, tokens: int, spans: Sequence[ImageSpan]
) -> PromptImages:
    """Return a prompt's images with these."""
    known = images or PromptImages(image_rows(program), tokens)
    made = replace(known, spans=tuple(spans))
    check_images(made, tokens, program)
    return made
