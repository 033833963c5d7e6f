"""Tensors that are available for a draft head: of a file, or by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Shape = tuple[int, ...]


class HeadTensors(Protocol):
    """Tensors that are available for a draft head."""

    def problems(self, shapes: Mapping[str, Shape]) -> Sequence[str]:
        """Return the missing or misshapen weights among these canonical names and shapes."""
        ...

    def rows(self, name: str) -> int | None:
        """Return the rows of a matrix by its canonical name; None if absent or arbitrary."""
        ...

    def called(self, name: str) -> str:
        """Return the file's name for the tensor of this canonical name."""
        ...


class EveryTensorPresent:
    """Tensors by formula: every name and shape exists."""

    def problems(self, shapes: object) -> Sequence[str]:
        """Return no problem."""
        return ()

    def rows(self, name: str) -> int | None:
        """Return None: any number of rows fits."""
        return None

    def called(self, name: str) -> str:
        """Return the canonical name."""
        return name


SYNTHETIC_TENSORS: HeadTensors = EveryTensorPresent()
