"""The protocol of decoder steps, and their position in a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "MIDDLE",
    "WHOLE",
    "TextEdges",
    "StepPosition",
    "TextCollector",
    "DecodeStep",
    "literal_of",
]

_REGEX_SIGNS = frozenset("\\^$.|?*+()[]{}")


@dataclass(frozen=True)
class TextEdges:
    """Whether the pieces begin and end the text, or lie inside one."""

    first: bool = True
    last: bool = True


WHOLE, MIDDLE = TextEdges(), TextEdges(first=False, last=False)


class DecodeStep:
    """Passes tokens on as they are: parts of a token, its end, and the end of the text."""

    after: DecodeStep

    def part(self, text: str) -> None:
        """Take a part of a token."""
        self.after.part(text)

    def end(self) -> None:
        """End the token."""
        self.after.end()

    def close(self) -> None:
        """End the text."""
        self.after.close()


class TextCollector(DecodeStep):
    """Collects the decoded text."""

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
class StepPosition:
    """A step's position: edges of the text, and whether all tokens are joined already."""

    edges: TextEdges
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
    """Return the text that one of the library's patterns matches; None if it matches several."""
    text = pattern.get("String", pattern.get("Regex"))
    if not isinstance(text, str) or ("Regex" in pattern and _REGEX_SIGNS.intersection(text)):
        return None
    return text
