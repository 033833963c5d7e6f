"""Fields of a tokenizer in a GGUF file's metadata, checked one by one."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from cortiq.errors import TokenizerError, shown
from cortiq.tokenizer.special_tokens import TokenType

__all__ = ["HIDDEN", "PREFIX", "Tokens", "array", "flag", "named_id", "strings", "token_types"]

PREFIX = "tokenizer.ggml."
HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)
BYTE_TEXTS = tuple(f"<0x{byte:02X}>" for byte in range(256))


class Tokens:
    """The file's tokens: texts and types by id, and text -> id of each type."""

    def __init__(self, texts: list[str], types: list[int]) -> None:
        self.texts, self.types, self.size = texts, types, len(texts)
        self._of_type: dict[int, dict[str, int]] = {kind: {} for kind in {*types, *TokenType}}
        for token, (text, kind) in enumerate(zip(texts, types, strict=True)):
            self._of_type[kind][text] = token

    def of(self, *kinds: int) -> dict[str, int]:
        """Return text -> id of the tokens of these types."""
        merged: dict[str, int] = {}
        for kind in kinds:
            merged |= self._of_type[kind]
        return merged

    def but(self, *kinds: int) -> dict[str, int]:
        """Return text -> id of the tokens of all other types."""
        return self.of(*(self._of_type.keys() - {*kinds}))


def flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a switch; TokenizerError if it is none."""
    value = metadata.get(PREFIX + name, default)
    if type(value) not in (bool, int) or value not in (0, 1):
        raise TokenizerError(f"{shown(value)} is not true or false", where=PREFIX + name)
    return bool(value)


def named_id(metadata: Mapping[str, Any], name: str, size: int, default: int | None) -> int | None:
    """Return the id that a key names; TokenizerError if there is no such token."""
    key = f"{PREFIX}{name}_token_id"
    if key not in metadata:
        return default if default is not None and default < size else None
    token = metadata[key]
    try:
        token = operator.index(token)
    except TypeError:  # an array too, though NumPy's have __index__
        raise TokenizerError(f"{shown(token)} is not a token id", where=key) from None
    if not 0 <= token < size:
        raise TokenizerError(f"id {token} is out of range; there are {size} tokens", where=key)
    return token


def token_types(metadata: Mapping[str, Any], texts: list[str]) -> list[int]:
    """Return the kind of each token: all are normal where the file says nothing."""
    if PREFIX + "token_type" not in metadata:
        return [TokenType.NORMAL] * len(texts)
    types = array(metadata, "token_type", len(texts))
    if not all(isinstance(kind, int) for kind in types):
        raise TokenizerError("an array of integers was expected", where=PREFIX + "token_type")
    for token, kind in enumerate(types):
        if kind == TokenType.BYTE and texts[token] not in BYTE_TEXTS:
            raise TokenizerError(
                f"byte token {token} is called {texts[token]!r}", where=PREFIX + "tokens"
            )
    return types


def array(metadata: Mapping[str, Any], name: str, length: int | None = None) -> list[Any]:
    """Return an array, of the given length; TokenizerError if it is missing or none."""
    key = PREFIX + name
    if key not in metadata:
        raise TokenizerError("the file lacks this part of its tokenizer", where=key)
    values = metadata[key]
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise TokenizerError("an array was expected", where=key)
    if length is not None and len(values) != length:
        raise TokenizerError(f"{len(values)} entries for {length} tokens", where=key)
    return values.tolist() if hasattr(values, "tolist") else list(values)


def strings(metadata: Mapping[str, Any], name: str, *, unique: bool = True) -> list[str]:
    """Return an array of strings of valid UTF-8; TokenizerError if it is none."""
    values = array(metadata, name)
    try:
        texts = [v.decode("utf-8") if isinstance(v, bytes) else v for v in values]
    except UnicodeDecodeError as error:
        raise TokenizerError(f"not UTF-8: {error}", where=PREFIX + name) from None
    if not texts or not all(isinstance(text, str) for text in texts):
        raise TokenizerError("a non-empty array of strings was expected", where=PREFIX + name)
    if unique and len(set(texts)) != len(texts):
        raise TokenizerError("an entry appears twice", where=PREFIX + name)
    return texts
