"""The protocol of decoders' steps, and where in a text they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MIDDLE", "WHOLE", "Edges", "Place", "Sink", "Step", "literal_of"]

_REGEX_SIGNS = frozenset("\\^$.|?*+()[]{}")


@dataclass(frozen=True)
class Edges:
    """Whether the pieces begin and end the text, or lie inside one."""

    first: bool = True
    last: bool = True


WHOLE, MIDDLE = Edges(), Edges(first=False, last=False)


class Step:
    """Passes tokens on as they are: parts of a token, its end, and the end of the text."""

    after: Step

    def part(self, text: str) -> None:
        """Take a part of a token."""
        self.after.part(text)

    def end(self) -> None:
        """End the token."""
        self.after.end()

    def close(self) -> None:
        """End the text."""
        self.after.close()


class Sink(Step):
    """Keeps the text that came out."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def part(self, text: str) -> None:
        """Take a part of a token."""
        self.parts.append(text)

    def end(self) -> None:
        """End the token."""

    def close(self) -> None:
        """End the text."""


@dataclass(frozen=True)
class Place:
    """A step's place: edges of the text, and whether all tokens are one already (`joined`)."""

    edges: Edges
    joined: bool
    errors: str

    @property
    def first(self) -> bool:
        """Whether the token that comes first is the first of the text."""
        return self.edges.first or self.joined

    @property
    def last(self) -> bool:
        """Whether the token that comes last is the last of the text."""
        return self.edges.last or self.joined


def literal_of(pattern: Mapping[str, Any]) -> str | None:
    """The text that a pattern of the library matches, or None where it may match several."""
    text = pattern.get("String", pattern.get("Regex"))
    if not isinstance(text, str) or ("Regex" in pattern and _REGEX_SIGNS.intersection(text)):
        return None
    return text
