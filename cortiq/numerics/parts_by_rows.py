"""Parts of a weight that are made when they are needed, as a whole or row by row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt


class PartsByRows(Mapping[str, npt.NDArray[Any]]):
    """Parts of a weight that are kept once they are made, or made row by row and not kept.

    Attributes
    ----------
    in_passing : whether `rows` makes rows and keeps none.
    """

    in_passing: bool

    @abstractmethod
    def rows(self, start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """Make the parts of some rows."""

    @abstractmethod
    def once(self) -> PartsByRows:
        """Return the same parts, rows of which are made whenever they are asked for."""
