"""Images in a text: what the rows of a trunk supply where it sees them.

A row that does not stand for an image's part sees no key after itself, and its position on every
axis is the same, so that a text without images has the bits of a trunk that has no such inputs.

Rows of an image may also stand beside the text: an entry stores keys and values of them
(`ir.encoded`), and layers of the trunk attend to those of the tiles that a row lists. A row that
sees no tile gets +0 from this attention, and the factor 0 on what such a layer adds besides: one
program is for texts with images and without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from cortiq.domains import Count, Size
from cortiq.ir.encoded import LAST_ENCODED
from cortiq.ir.graph import Program
from cortiq.ir.op import Described
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.rope import Sections

IMAGES = "images"
"""Fact of a program that is an `ImageRows`."""
TEXT_IDS = "text_ids"
"""Fact of a program: how many of the first ids a text is made of. Those behind them are parts of
images and sounds, whose rows no table of the trunk has.
"""
AXES = "axes"
"""Input: positions of a row on the axes of a rotation."""
FIRST_AXES = "first_axes"
"""Input: the same of the row where the last rows of a window begin that this row would close."""
TILES, SEEN = "tiles", "tiles.seen"
"""Inputs: numbers of the tiles beside the text that a row sees, and 1 where it sees any, else 0."""
CROSS = "cross"
"""Part of the names of nodes that add what a row takes of images beside the text: of a text, +0."""
EMBED, DEEP = "embed", "deep.{}"
"""Values of a trunk that an image's rows supply: the embedding, and what layers add to theirs."""


@dataclass(frozen=True)
class ImageRows(Described):
    """Inputs of a trunk's rows.

    Attributes
    ----------
    last : input with the last key that a row sees; an image's rows see all of the image. Empty
        where no row sees a key after itself.
    sections : rotary pairs by the axis whose position turns them (`AXES`); None where a row has
        only its own position.
    deep : first layers that add a row of the image to their output (`DEEP`), a text's rows zeros.
    width : of the trunk's rows; needed where there are such layers.
    window : rows of windows whose keys turn as at the first (`FIRST_AXES`); 1 where none do.
    tile : rows of each tile of an image, where they stand beside the text; 0 where they are in it.
    tiles : those of a prompt at most, where they stand beside it.
    token : id that an image's rows are fed as, for tables beside the embedding; None: their own.
    """

    last: str = ""
    sections: Sections | None = None
    deep: int = 0
    width: int = 0
    token: int | None = None
    window: Count = 1
    tile: Size = 0
    tiles: Size = 0

    @property
    def axes(self) -> int:
        """Number of the positions of a row."""
        return 0 if self.sections is None else self.sections.count

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Inputs with positions on several axes."""
        return (AXES, FIRST_AXES)[: 1 + (self.window > 1)] if self.axes else ()

    @property
    def supplies(self) -> bool:
        """Whether rows supply anything."""
        return bool(self.last or self.axes or self.deep or self.tile)

    @property
    def deep_names(self) -> tuple[str, ...]:
        """Inputs of the layers that add rows of an image."""
        return tuple(DEEP.format(n) for n in range(self.deep))

    def parts(self, row: Floats) -> dict[str, Floats]:
        """Return what a row of an image is to each value of the trunk, of all in one; that of a
        sound is the embedding alone.
        """
        names = (EMBED, *(self.deep_names if row.size > self.width else ()))
        return dict(zip(names, np.split(row, len(names)), strict=True))

    def beside(self, first: int = 0, stop: int = 0) -> dict[str, np.ndarray]:
        """Return what a row supplies that sees the tiles from `first` up to before `stop`."""
        listed = np.arange(first, first + self.tiles, dtype=np.int32)
        return {
            LAST_ENCODED: np.array(stop * self.tile - 1, np.int32), TILES: listed[None],
            SEEN: np.array([stop > first], F32),
        }  # fmt: skip

    def inputs(
        self,
        position: int,
        last: int | None = None,
        turned: Callable[[int], np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """Return what a row supplies; by default it sees nothing after itself, and its positions
        are its own.

        Parameters
        ----------
        turned : the positions of the row at a place on every axis.
        """
        given: dict[str, np.ndarray] = {}
        if self.last:
            given[self.last] = np.array(position if last is None else last, np.int32)
        turned = turned or (lambda at: np.full(self.axes, at, np.int32))
        places = position, max(position + 1 - self.window, 0)
        given |= {name: turned(at) for name, at in zip(self.axis_names, places, strict=False)}
        given |= self.beside() if self.tile else {}
        return given | (dict.fromkeys(self.deep_names, _zeros(self.width)) if self.deep else {})


@cache
def _zeros(width: int) -> Floats:
    """Return +0 for each column: one array, which backends may know by its identity."""
    found = np.zeros(width, F32)
    found.flags.writeable = False
    return found


TEXT_ONLY = ImageRows()
"""Of a trunk whose rows supply nothing."""


def image_rows(program: Program) -> ImageRows:
    """Return what the rows of a program's trunk supply where it sees images."""
    found: ImageRows = program.facts.get(IMAGES, TEXT_ONLY)
    return found
