"""The part of a tokenizer that depends on its kind."""

from __future__ import annotations

from typing import Protocol


class TextStream(Protocol):
    """Ids to text, one by one."""

    def add(self, token_id: int) -> str:
        """Return the text that is final after this id, possibly none."""

    def finish(self) -> str:
        """Return the rest of the text."""


class Vocabulary(Protocol):
    """The part of a tokenizer that depends on its kind: pieces, and splitting text into them."""

    size: int

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the ids of a text of valid Unicode, without BOS."""

    def stream(self, continuation: bool) -> TextStream:
        """Open a stream that decodes ids; `continuation`: they follow other text."""

    def piece_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of an id inside a text; possibly part of a character."""

    def own_text(self, token_id: int) -> str:
        """Return the text by which `find` finds this token."""

    def find(self, text: str) -> int | None:
        """Return the id of the token written exactly like this, if there is one."""
