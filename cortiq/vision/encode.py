"""Running a tower: an image's rows of the text model, computed once for each image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from cortiq.backend import Executable
from cortiq.backend.batch import NO_INPUTS
from cortiq.backend.held_rows import joined
from cortiq.engine.encoder_rows import EncoderRows, KeptRows, entry_outputs
from cortiq.engine.session import Session
from cortiq.errors import CortiqError
from cortiq.ir.encoders import PLACE
from cortiq.numerics.contract import Floats
from cortiq.vision.image import PreparedImage
from cortiq.vision.passes import FAILED, Made, tiles_made
from cortiq.vision.tower import NEWLINE

KEPT_ROWS = 1 << 24
"""Floats of images' rows that are kept: 64 MiB."""


class VisionEncoder:
    """A tower on a backend, and the rows that it made last."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._kept = KeptRows(KEPT_ROWS)

    def rows(self, image: PreparedImage) -> Floats:
        """Return an image's rows, float32 [rows, width]; those made last are not made again."""
        return self._kept.get(image.digest, lambda: image_rows(self.executable, image))

    def makers(self, images: Sequence[PreparedImage]) -> list[Callable[[], Floats]]:
        """Return what makes the rows of each image of a prompt, of all when the first are asked
        for. It raises what one raises alone.
        """
        together = _Together(self, images)
        return [partial(together.rows, number) for number in range(len(images))]

    def all_made(self, images: Sequence[PreparedImage]) -> list[Made]:
        """Return the rows of images, or why an image has none; those made last are not made again,
        nor those of the same image twice.
        """
        wanted = {image.digest: image for image in images}
        known = {digest: self._kept.find(digest) for digest in wanted}
        made: dict[str, Made] = {d: rows for d, rows in known.items() if rows is not None}
        lacking = [digest for digest in wanted if digest not in made]
        found = images_made(self.executable, [wanted[digest] for digest in lacking])
        for digest, rows in zip(lacking, found, strict=True):
            if not isinstance(rows, CortiqError):
                rows = self._kept.keep(digest, rows)
            made[digest] = rows
        return [made[image.digest] for image in images]

    def close(self) -> None:
        """Release the tower."""
        self._kept.clear()
        self.executable.close()


class _Together:
    """The rows of a prompt's images, which are made when the first are asked for."""

    def __init__(self, encoder: VisionEncoder, images: Sequence[PreparedImage]) -> None:
        self._encoder, self._images = encoder, images
        self._made: Sequence[Made] | None = None

    def rows(self, number: int) -> Floats:
        """Return the rows of an image; raise why there are none."""
        if self._made is None:
            self._made, self._images = self._encoder.all_made(self._images), ()
        return _good(self._made[number])


def image_rows(executable: Executable, image: PreparedImage) -> Floats:
    """Compute the rows of an image in the order of the text, the ends of lines among them."""
    (rows,) = images_rows(executable, [image])
    return rows


def images_rows(executable: Executable, images: Sequence[PreparedImage]) -> list[Floats]:
    """Compute the rows of images, several in a batch where there is room for them.

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    RequestError : there is no memory for the patches of an image.
    """
    return [_good(made) for made in images_made(executable, images)]


def images_made(executable: Executable, images: Sequence[PreparedImage]) -> list[Made]:
    """Compute the rows of images; an image of which there are none has its error in their place."""
    tiles = iter(tiles_made(executable, [tile for image in images for tile in image.tiles]))
    found: list[Made] = []
    for image in images:
        parts = [next(tiles) for _ in image.tiles]
        bad = next((part for part in parts if isinstance(part, CortiqError)), None)
        found.append(_ordered(executable, image, parts) if bad is None else bad)
    return found


def _good(made: Made) -> Floats:
    """Return rows; raise the error that stands in their place."""
    if isinstance(made, CortiqError):
        raise made
    return made


def _ordered(executable: Executable, image: PreparedImage, rows: list[Any]) -> Floats:
    """Return the rows of an image's tiles as its text has them."""
    if image.order is not None and NEWLINE in executable.program.graphs:
        rows.append(_ends(executable, int(image.order.max()) + 1 - sum(map(len, rows))))
    whole: Floats = joined(rows)
    return whole if image.order is None else whole[image.order]


def _ends(executable: Executable, count: int) -> Floats:
    """Compute the rows that end lines, or other parts, of an image; one at least."""
    count = max(count, 1)
    numbered = PLACE in executable.program.graphs[NEWLINE].inputs
    inputs = {PLACE: np.arange(count, dtype=np.int32)} if numbered else NO_INPUTS
    with Session(executable, count) as session:
        given = [EncoderRows(session.state, count, inputs)]
        return entry_outputs(executable, given, NEWLINE, FAILED)[0][0]
