"""The tokenizer of a model that comes without one: everything about text is its reason."""

from __future__ import annotations

from typing import NoReturn

from cortiq.errors import NoTokenizerError
from cortiq.tokenizer.special import SpecialTokens
from cortiq.tokenizer.tokenizer import Tokenizer

__all__ = ["AbsentTokenizer"]


class _NoPieces:
    """A vocabulary of nothing."""

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


class AbsentTokenizer(Tokenizer):
    """Knows no token and no text; every question about them raises the reason.

    Parameters
    ----------
    reason : why there is none; `absent` afterwards.
    """

    def __init__(self, reason: NoTokenizerError) -> None:
        super().__init__(_NoPieces(reason), SpecialTokens())
        self.absent = self._reason = reason

    def token_bytes(self, token_id: int) -> NoReturn:
        """Raises the reason."""
        raise self._reason

    def chat_template(self, *, tools: bool = False) -> NoReturn:
        """Raises the reason: a template's text could not be encoded."""
        raise self._reason

    def __repr__(self) -> str:
        return "<no tokenizer>"
