"""Running a tower: an image's rows of the text model, computed once for each image."""

from __future__ import annotations

import numpy as np

from cortiq.backend import Executable, Named, Row
from cortiq.engine.encoder_rows import KeptRows, entry_rows, projected_rows
from cortiq.engine.session import Session
from cortiq.ir.encoders import LAST, STAGE
from cortiq.numerics.contract import F32, Floats
from cortiq.vision.image import PreparedImage, Tile
from cortiq.vision.tower import NEWLINE

KEPT_ROWS = 1 << 24
"""Floats of images' rows that are kept: 64 MiB."""
FAILED = "the image cannot be read by this model"


class VisionEncoder:
    """A tower on a backend, and the rows that it made last."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._kept = KeptRows(KEPT_ROWS)

    def rows(self, image: PreparedImage) -> Floats:
        """Return an image's rows, float32 [rows, width]; those made last are not made again."""
        return self._kept.get(image.digest, lambda: image_rows(self.executable, image))

    def close(self) -> None:
        """Release the tower."""
        self._kept.clear()
        self.executable.close()


def image_rows(executable: Executable, image: PreparedImage) -> Floats:
    """Compute the rows of an image in the order of the text, the ends of lines among them."""
    rows = [tile_rows(executable, tile) for tile in image.tiles]
    if image.order is None:
        return np.concatenate(rows)
    if NEWLINE in executable.program.graphs:
        rows.append(_newline(executable))
    return np.concatenate(rows)[image.order]


def _newline(executable: Executable) -> Floats:
    """Compute the row that ends a line."""
    want = Named(NEWLINE)
    with Session(executable, 1) as session:
        row = Row(session.state, 0, 0, (want,))
        (made,) = entry_rows(executable, session, [row], NEWLINE, FAILED)
        return np.asarray(made[want], F32)[None]


def tile_rows(executable: Executable, tile: Tile) -> Floats:
    """Compute the rows of one tile: all its patches in a batch, its stages' and its own in others.

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    RequestError : there is no memory for so many patches.
    """
    count = len(tile.patches)
    last = np.array(count - 1, np.int32)
    inputs = [
        {"patch": tile.patches[i], LAST: last, **{n: v[i] for n, v in tile.inputs.items()}}
        for i in range(count)
    ]
    want = tuple(Named(name) for name in executable.program.trunk.outputs)
    with Session(executable, max(count, len(tile.squares))) as session:
        made = session.read_rows(session.feed_each([0] * count, [want] * count, inputs))
        hidden = [np.stack([np.asarray(row[one], F32) for row in made]) for one in want]
        for n, stage in enumerate(tile.stages):
            below, entry = [hidden[0][stage.squares]], STAGE.format(n)
            hidden = [projected_rows(executable, session, below, FAILED, entry, stage.inputs)]
        squares = [rows[tile.squares] for rows in hidden]
        return projected_rows(executable, session, squares, FAILED, inputs=tile.supplied)
