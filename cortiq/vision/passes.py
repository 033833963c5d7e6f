"""Tiles on their way through a tower: several in a batch, two batches at a time.

While a device computes one batch the host prepares the next. What one entry makes for another
stays on the device where the backend can hold it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend import Executable, State
from cortiq.backend.held_rows import Values, side_by_side
from cortiq.backend.protocol import BATCH_ROWS
from cortiq.engine.encoder_rows import EncoderRows, EntryPass, rows_of_squares
from cortiq.engine.session import Session
from cortiq.errors import CortiqError, RequestError
from cortiq.ir.encoders import LAST, PROJECTOR, STAGE
from cortiq.numerics.contract import Floats
from cortiq.vision.image import Tile
from cortiq.vision.tower import PATCH

FAILED = "the image cannot be read by this model"
Squares = npt.NDArray[np.int64]
Made = Floats | CortiqError
"""Rows of a tile, or of an image, or why there are none."""


def tiles_made(executable: Executable, tiles: Sequence[Tile]) -> list[Made]:
    """Compute the rows of tiles, in batches of those that there is room for."""
    made: list[Made] = []
    begun: TilePass | None = None
    projected: TilePass | None = None
    ended: TilePass | None = None
    try:
        while tiles or begun or projected:
            after, idle = None, not (begun or projected)
            if tiles and (idle or (executable.asynchronous and _has_room(executable, tiles[0]))):
                after = TilePass(executable, _fitting(executable, tiles))
                tiles = tiles[len(after.tiles) :]
            begun, ended, projected = after, projected, begun
            if projected:  # before the host waits for rows: the device goes on meanwhile
                projected.project()
            if ended:
                made += ended.rows()
    finally:
        for one in (begun, projected, ended):
            if one:
                one.close()
    return made


class TilePass:
    """Tiles that are computed in one batch: all patches, then the stages' rows, then their own.

    A tile that fails is no longer among those that are computed; the others are.
    """

    def __init__(self, executable: Executable, tiles: Sequence[Tile]) -> None:
        self.tiles, self._executable = tiles, executable
        self._errors: dict[int, CortiqError] = {}
        self._alive: Sequence[int] = []
        given: list[EncoderRows] = []
        with ExitStack() as stack:
            try:
                opened = [stack.enter_context(Session(executable, _limit(tile))) for tile in tiles]
                given = [_patches(s.state, t) for s, t in zip(opened, tiles, strict=True)]
                self._alive = range(len(tiles))
            except RequestError as error:  # there is no memory for so many patches
                self._errors = dict.fromkeys(range(len(tiles)), error)
            self._states = [rows.state for rows in given]
            self._under_way = EntryPass(executable, given, "trunk", FAILED, held=True)
            self._sessions = stack.pop_all()

    def close(self) -> None:
        """Give the sequences back."""
        self._sessions.close()

    def project(self) -> None:
        """Wait for the patches, and submit what is made of them last."""
        for n in range(len(self.tiles[0].stages)):
            stages = [tile.stages[n] for tile in self.tiles]
            self._submit(STAGE.format(n), [(s.squares, s.inputs, s.parts) for s in stages])
        last = [(tile.squares, tile.supplied, tile.parts) for tile in self.tiles]
        self._submit(PROJECTOR, last)

    def rows(self) -> list[Made]:
        """Wait for the rows of the tiles, which end the pass."""
        outputs = side_by_side(self._outputs())
        made = dict(zip(self._alive, outputs, strict=True))
        self.close()
        return [made[n] if n in made else self._errors[n] for n in range(len(self.tiles))]

    def _submit(self, entry: str, of: Sequence[tuple[Squares, Mapping[str, Any], int]]) -> None:
        """Submit an entry whose rows are made of squares of what the one under way brings.

        Parameters
        ----------
        of : squares of each tile, what rows supply besides, and parts of the rows below.
        """
        given, program = [], self._executable.program
        for found, n in zip(self._outputs(), self._alive, strict=True):
            squares, more, parts = of[n]
            below, state = gathered(found, squares, parts), self._states[n]
            given.append(rows_of_squares(program, state, below, entry, more))
        self._under_way = EntryPass(self._executable, given, entry, FAILED, held=True)

    def _outputs(self) -> list[list[Values]]:
        """Wait for the entry under way; return its outputs for each tile that has not failed."""
        found = dict(zip(self._alive, self._under_way.outputs(), strict=True))
        self._errors |= {n: e for n, e in found.items() if isinstance(e, CortiqError)}
        kept = {n: rows for n, rows in found.items() if not isinstance(rows, CortiqError)}
        self._alive = [*kept]
        return [*kept.values()]


def _patches(state: State, tile: Tile) -> EncoderRows:
    """Return the rows of a tile's patches, each of which sees all."""
    count = len(tile.patches)
    last = np.full(count, count - 1, np.int32)
    return EncoderRows(state, count, {PATCH: tile.patches, LAST: last, **tile.inputs})


def gathered(outputs: Sequence[Values], squares: Squares, parts: int = 1) -> list[Values]:
    """Return the rows of each output that squares are of, [squares, rows of a square, width].

    Parameters
    ----------
    parts : equal parts of a row, each of which counts as one.
    """
    if parts > 1:
        outputs = [rows.reshape(len(rows) * parts, -1) for rows in outputs]
    if np.array_equal(squares.reshape(-1), np.arange(len(outputs[0]))):  # in order already
        return [rows.reshape(*squares.shape, -1) for rows in outputs]
    return [rows[squares] for rows in outputs]


def _limit(tile: Tile) -> int:
    """Return the rows of a tile's sequence."""
    return max(len(tile.patches), len(tile.squares))


def _has_room(executable: Executable, tile: Tile) -> bool:
    """Return whether there is memory for a tile's sequence beside those that there are."""
    return executable.state_bytes(_limit(tile)) <= executable.free_bytes() // 2


def _fitting(executable: Executable, tiles: Sequence[Tile]) -> Sequence[Tile]:
    """Return the first tiles, as many as a batch of the executable has room for; one at least."""
    rows, room, count = 0, executable.free_bytes() // 2, 0
    most = getattr(executable, "batch_rows", BATCH_ROWS)
    for tile in tiles:
        rows, room = rows + len(tile.patches), room - executable.state_bytes(_limit(tile))
        if rows > most or room < 0 or len(tile.stages) != len(tiles[0].stages):
            break
        count += 1
    return tiles[: max(1, count)]
