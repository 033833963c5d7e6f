"""What tensors there are for a draft head: of a file, or by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Shape = tuple[int, ...]


class HeadTensors(Protocol):
    """What tensors there are for a draft head."""

    def problems(self, shapes: Mapping[str, Shape]) -> Sequence[str]:
        """What is missing or misshapen of weights of these canonical names and shapes."""
        ...

    def rows(self, name: str) -> int | None:
        """Rows of a matrix by its canonical name; None where there is none, or any would do."""
        ...

    def called(self, name: str) -> str:
        """What a file calls the tensor of this canonical name."""
        ...


class SyntheticTensors:
    """Tensors by formula: all there could be."""

    def problems(self, shapes: object) -> Sequence[str]:
        """None."""
        return ()

    def rows(self, name: str) -> int | None:
        """Any number would do."""
        return None

    def called(self, name: str) -> str:
        """The same."""
        return name


SYNTHETIC_TENSORS: HeadTensors = SyntheticTensors()
