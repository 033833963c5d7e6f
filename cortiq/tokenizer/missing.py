"""The tokenizer of a model without one: every operation on text raises the reason."""

from __future__ import annotations

from typing import NoReturn

from cortiq.errors import NoTokenizerError
from cortiq.tokenizer.special_tokens import SpecialTokens
from cortiq.tokenizer.tokenizer import Tokenizer

__all__ = ["MissingTokenizer"]


class _NoPieces:
    """A vocabulary without tokens."""

    size = 0

    def __init__(self, reason: NoTokenizerError) -> None:
        self.reason = reason

    def encode(self, text: str, parse_special: bool) -> NoReturn:
        raise self.reason

    def piece_bytes(self, token_id: int) -> NoReturn:
        raise self.reason

    def stream(self, continuation: bool) -> NoReturn:
        raise self.reason

    def own_text(self, token_id: int) -> NoReturn:
        raise self.reason

    def find(self, text: str) -> NoReturn:
        raise self.reason


class MissingTokenizer(Tokenizer):
    """Knows no token and no text; every operation raises the reason.

    Parameters
    ----------
    reason : why there is none; `absent` afterwards.
    """

    def __init__(self, reason: NoTokenizerError) -> None:
        super().__init__(_NoPieces(reason), SpecialTokens())
        self.absent = self._reason = reason

    def token_bytes(self, token_id: int) -> NoReturn:
        """Raise the reason."""
        raise self._reason

    def chat_template(self, *, tools: bool = False) -> NoReturn:
        """Raise the reason: a template's text could not be encoded."""
        raise self._reason

    def __repr__(self) -> str:
        return "<no tokenizer>"
