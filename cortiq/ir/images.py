"""Images in a text: what the rows of a trunk supply where it sees them.

A row that does not stand for an image's part sees no key after itself, and its position on every
axis is the same, so that a text without images has the bits of a trunk that has no such inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortiq.ir.op import Described
from cortiq.numerics.rope import Sections

IMAGES = "images"
"""Fact of a program that is an `ImageRows`."""
AXES = "axes"
"""Input: positions of a row on the axes of a rotation."""


@dataclass(frozen=True)
class ImageRows(Described):
    """Inputs of a trunk's rows.

    Attributes
    ----------
    last : input with the last key that a row sees; an image's rows see all of the image. Empty
        where no row sees a key after itself.
    sections : rotary pairs by the axis whose position turns them (`AXES`); None where a row has
        only its own position.
    """

    last: str = ""
    sections: Sections | None = None

    @property
    def axes(self) -> int:
        """Number of the positions of a row."""
        return 0 if self.sections is None else self.sections.count

    @property
    def supplies(self) -> bool:
        """Whether rows supply anything."""
        return bool(self.last or self.axes)

    def inputs(
        self, position: int, last: int | None = None, axes: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return what a row supplies; by default it sees nothing after itself, and its positions
        are its own.
        """
        given: dict[str, np.ndarray] = {}
        if self.last:
            given[self.last] = np.array(position if last is None else last, np.int32)
        if self.axes:
            given[AXES] = np.full(self.axes, position, np.int32) if axes is None else axes
        return given


TEXT_ONLY = ImageRows()
"""Of a trunk whose rows supply nothing."""
