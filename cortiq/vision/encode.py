"""Running a tower: an image's rows of the text model, computed once for each image."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from cortiq.backend import Executable, State
from cortiq.backend.batch import NO_INPUTS
from cortiq.backend.protocol import BATCH_ROWS
from cortiq.engine.encoder_rows import (
    EncoderRows,
    KeptRows,
    entry_outputs,
    joined,
    rows_of_squares,
)
from cortiq.engine.session import Session
from cortiq.ir.encoders import LAST, PROJECTOR, STAGE
from cortiq.numerics.contract import Floats
from cortiq.vision.image import PreparedImage, Tile
from cortiq.vision.tower import NEWLINE, PATCH

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
    (rows,) = images_rows(executable, [image])
    return rows


def images_rows(executable: Executable, images: Sequence[PreparedImage]) -> list[Floats]:
    """Compute the rows of images, several in a batch where there is room for them."""
    tiles = iter(tiles_rows(executable, [tile for image in images for tile in image.tiles]))
    found = []
    for image in images:
        rows = [next(tiles) for _ in image.tiles]
        if image.order is not None and NEWLINE in executable.program.graphs:
            rows.append(_newline(executable))
        whole = joined(rows)
        found.append(whole if image.order is None else whole[image.order])
    return found


def _newline(executable: Executable) -> Floats:
    """Compute the row that ends a line."""
    with Session(executable, 1) as session:
        given = [EncoderRows(session.state, 1, NO_INPUTS)]
        return entry_outputs(executable, given, NEWLINE, FAILED)[0][0]


def tiles_rows(executable: Executable, tiles: Sequence[Tile]) -> list[Floats]:
    """Compute the rows of tiles, in batches of those that there is room for.

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    RequestError : there is no memory for so many patches.
    """
    found: list[Floats] = []
    while len(found) < len(tiles):
        found += _together(executable, _fitting(executable, tiles[len(found) :]))
    return found


def tile_rows(executable: Executable, tile: Tile) -> Floats:
    """Compute the rows of one tile; see `tiles_rows`."""
    return tiles_rows(executable, [tile])[0]


def _limit(tile: Tile) -> int:
    """Return the rows of a tile's sequence."""
    return max(len(tile.patches), len(tile.squares))


def _fitting(executable: Executable, tiles: Sequence[Tile]) -> Sequence[Tile]:
    """Return the first tiles, as many as a batch of the executable has room for; one at least."""
    rows, room, count = 0, executable.free_bytes() // 2, 1
    most = getattr(executable, "batch_rows", BATCH_ROWS)
    for tile in tiles:
        rows, room = rows + len(tile.patches), room - executable.state_bytes(_limit(tile))
        if rows > most or room < 0 or len(tile.stages) != len(tiles[0].stages):
            break
        count += 1
    return tiles[: max(1, count - 1)]


def _together(executable: Executable, tiles: Sequence[Tile]) -> list[Floats]:
    """Compute the rows of tiles in one batch: all patches, then the stages', then their own."""
    program = executable.program
    with ExitStack() as stack:
        states = [stack.enter_context(Session(executable, _limit(t))).state for t in tiles]
        patches = [_patches(state, tile) for state, tile in zip(states, tiles, strict=True)]
        hidden = entry_outputs(executable, patches, "trunk", FAILED)
        for n in range(len(tiles[0].stages)):
            entry, stages = STAGE.format(n), [tile.stages[n] for tile in tiles]
            given = [
                rows_of_squares(program, state, gathered(below, one.squares), entry, one.inputs)
                for state, below, one in zip(states, hidden, stages, strict=True)
            ]
            made = entry_outputs(executable, given, entry, FAILED)
            hidden = [[joined(rows, axis=1)] for rows in made]
        given = [
            rows_of_squares(program, state, gathered(rows, t.squares), inputs=t.supplied)
            for state, rows, t in zip(states, hidden, tiles, strict=True)
        ]
        made = entry_outputs(executable, given, PROJECTOR, FAILED)
        return [joined(rows, axis=1) for rows in made]


def _patches(state: State, tile: Tile) -> EncoderRows:
    """Return the rows of a tile's patches, each of which sees all."""
    count = len(tile.patches)
    last = np.full(count, count - 1, np.int32)
    return EncoderRows(state, count, {PATCH: tile.patches, LAST: last, **tile.inputs})


def gathered(outputs: Sequence[Floats], squares: npt.NDArray[np.int64]) -> list[Floats]:
    """Return the rows of each output that squares are of, [squares, rows of a square, width]."""
    if np.array_equal(squares.reshape(-1), np.arange(len(outputs[0]))):  # in order already
        return [rows.reshape(*squares.shape, -1) for rows in outputs]
    return [rows[squares] for rows in outputs]
