"""Tokenizers from GGUF metadata: byte-level BPE ("gpt2"), character-level BPE ("gemma4"),
score-based vocabularies ("llama") and the longest match ("rwkv").

Keys and their meaning are those of the GGUF specification; where it is silent, the behaviour of
llama.cpp is followed (defaults of BOS, the space in front of a text, which tokens are cut out).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from cortiq.errors import NoTokenizerError, TokenizerError, UnsupportedError, shown
from cortiq.tokenizer.byte_level import ByteLevelEncoder, piece_bytes
from cortiq.tokenizer.char_level import CharLevelEncoder
from cortiq.tokenizer.decoders import ByteStream
from cortiq.tokenizer.longest_match import NAMED_TEMPLATES, LongestMatchEncoder, unescaped
from cortiq.tokenizer.pretokenizers import CHARACTER_LEVEL, pre_tokenizer
from cortiq.tokenizer.score_merge import SPACE, ScoreEncoder
from cortiq.tokenizer.special_tokens import (
    IMAGE_TEXTS,
    SpecialTokens,
    SpecialTokenSplitter,
    TokenType,
    find_end_tokens,
)

__all__ = ["load_gguf"]

_PREFIX = "tokenizer.ggml."
_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)
_BYTE_TEXTS = tuple(f"<0x{byte:02X}>" for byte in range(256))


class _Tokens:
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


class _GGUFVocabulary:
    """Tokens, and the two ways of turning uncut text into ids."""

    def __init__(
        self,
        tokens: _Tokens,
        encode_text: Callable[[str], list[int]],
        plain_bytes: Callable[[str], bytes],
        *,
        leading_space: bool,
    ) -> None:
        self.size = tokens.size
        self.leading_space = leading_space
        self._tokens = tokens
        self._encode_text = encode_text
        self._plain_bytes = plain_bytes
        self._cuts = SpecialTokenSplitter(tokens.of(TokenType.USER_DEFINED), tokens.of(*_HIDDEN))

    def encode(self, text: str, parse_special: bool) -> list[int]:
        ids: list[int] = []
        after_special = True
        for part in self._cuts.cut(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
                continue
            spaced = " " + part if self.leading_space and after_special else part
            ids += self._encode_text(spaced)
            after_special = False
        return ids

    def piece_bytes(self, token_id: int) -> bytes:
        text, kind = self._tokens.texts[token_id], self._tokens.types[token_id]
        if kind == TokenType.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind in (*_HIDDEN, TokenType.USER_DEFINED):
            return text.encode("utf-8")
        return self._plain_bytes(text)

    def stream(self, continuation: bool) -> ByteStream:
        return ByteStream(self.piece_bytes, self.leading_space and not continuation)

    def own_text(self, token_id: int) -> str:
        return self.piece_bytes(token_id).decode("utf-8", "replace")

    def find(self, text: str) -> int | None:
        try:
            return self._tokens.texts.index(text)
        except ValueError:
            return None


def load_gguf(
    metadata: Mapping[str, Any],
) -> tuple[_GGUFVocabulary, SpecialTokens, dict[str, str]]:
    """Load vocabulary, special tokens and chat templates from a GGUF file's metadata."""
    model = metadata.get(_PREFIX + "model")
    if model in (None, "none", "no_vocab"):
        message = "the file has no tokenizer: give token ids instead of text"
        hint = "on the command line with --ids"
        raise NoTokenizerError(message, where=_PREFIX + "model", hint=hint)
    if not isinstance(model, str) or model not in _BUILDERS:
        raise UnsupportedError(
            f"tokenizer model {model!r} is not supported",
            where=_PREFIX + "model",
            hint=f"Supported: {', '.join(sorted(_BUILDERS))}.",
        )
    characters = "gemma4" in (model, metadata.get(_PREFIX + "pre"))
    texts = _strings(metadata, "tokens", unique=not characters)
    tokens = _Tokens(texts, _token_types(metadata, texts))
    vocabulary, add_bos = _BUILDERS[model](metadata, tokens)
    special = _special_tokens(metadata, tokens, model == "llama", add_bos)
    return vocabulary, special, _chat_templates(metadata)


def _byte_level(metadata: Mapping[str, Any], tokens: _Tokens) -> tuple[_GGUFVocabulary, bool]:
    name = metadata.get(_PREFIX + "pre")
    if name is None:
        raise UnsupportedError(
            "the file does not name the pre-tokenizer of its vocabulary",
            where=_PREFIX + "pre",
            hint="It was written by an old converter; convert the model again.",
        )
    if name in CHARACTER_LEVEL:
        return _char_level(metadata, tokens)[0], False
    pre = pre_tokenizer(str(name))
    merges = [_pair(merge) for merge in _strings(metadata, "merges")]
    encoder = ByteLevelEncoder(tokens.but(*_HIDDEN), merges, pre)
    return _GGUFVocabulary(tokens, encoder.encode, piece_bytes, leading_space=False), pre.add_bos


def _score_based(metadata: Mapping[str, Any], tokens: _Tokens) -> tuple[_GGUFVocabulary, bool]:
    scores = _array(metadata, "scores", tokens.size)
    if not all(isinstance(score, (int, float)) and math.isfinite(score) for score in scores):
        raise TokenizerError("a token's score is not a finite number", where=_PREFIX + "scores")
    of_byte = tokens.of(TokenType.BYTE)
    encoder = ScoreEncoder(
        tokens.but(*_HIDDEN, TokenType.BYTE),
        scores,
        {byte: of_byte[text] for byte, text in enumerate(_BYTE_TEXTS) if text in of_byte},
        _named_id(metadata, "unknown", tokens.size, 0),
    )

    def encode_text(text: str) -> list[int]:
        return encoder.encode(text.replace(" ", SPACE))

    spaced = _flag(metadata, "add_space_prefix", True)
    return _GGUFVocabulary(tokens, encode_text, _spaced_bytes, leading_space=spaced), True


def _char_level(metadata: Mapping[str, Any], tokens: _Tokens) -> tuple[_GGUFVocabulary, bool]:
    merges = [_pair(merge) for merge in _strings(metadata, "merges")]
    encoder = CharLevelEncoder(tokens.but(*_HIDDEN), merges)
    return _GGUFVocabulary(tokens, encoder.encode, _spaced_bytes, leading_space=False), True


def _longest_match(metadata: Mapping[str, Any], tokens: _Tokens) -> tuple[_GGUFVocabulary, bool]:
    normal = tokens.of(TokenType.NORMAL)
    encoder = LongestMatchEncoder({unescaped(text): token for text, token in normal.items()})
    return _GGUFVocabulary(tokens, encoder.encode, unescaped, leading_space=False), False


def _spaced_bytes(text: str) -> bytes:
    """Return the bytes of a piece in which a space is written ▁."""
    return text.replace(SPACE, " ").encode("utf-8")


_BUILDERS = {
    "gemma4": _char_level, "gpt2": _byte_level, "llama": _score_based, "rwkv": _longest_match,
}  # fmt: skip


def _special_tokens(
    metadata: Mapping[str, Any], tokens: _Tokens, score_based: bool, add_bos: bool
) -> SpecialTokens:
    size = tokens.size
    # Old score-based files leave these out: they are Llama 1's ids. Byte-level files have no rule.
    bos, eos, unknown = (
        _named_id(metadata, name, size, default if score_based else None)
        for name, default in (("bos", 1), ("eos", 2), ("unknown", 0))
    )
    others = [_named_id(metadata, name, size, None) for name in ("eot", "eom")]
    add_bos = _flag(metadata, "add_bos_token", add_bos)
    if add_bos and bos is None:
        raise TokenizerError(
            "the tokenizer puts BOS before a text, but the file does not say which token it is",
            where=_PREFIX + "bos_token_id",
        )
    defined = tokens.of(TokenType.USER_DEFINED)
    marks = {defined[text] for text in IMAGE_TEXTS if text in defined}
    hidden = frozenset(tokens.of(*_HIDDEN).values()) | marks
    ends = find_end_tokens([eos, *others], tokens.of(TokenType.CONTROL))
    return SpecialTokens(bos, eos, ends, unknown, hidden, add_bos)


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(_PREFIX + name, default)
    if type(value) not in (bool, int) or value not in (0, 1):
        raise TokenizerError(f"{shown(value)} is not true or false", where=_PREFIX + name)
    return bool(value)


def _named_id(metadata: Mapping[str, Any], name: str, size: int, default: int | None) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
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


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    # Keys only: looking at every value would decode the whole vocabulary once more.
    found = [name for name in metadata if name == key or name.startswith(key + ".")]
    templates = {name: str(metadata[name]) for name in found}
    return {
        name.removeprefix(key).lstrip(".") or "default": NAMED_TEMPLATES.get(text, text)
        for name, text in templates.items()
    }


def _token_types(metadata: Mapping[str, Any], texts: list[str]) -> list[int]:
    if _PREFIX + "token_type" not in metadata:
        return [TokenType.NORMAL] * len(texts)
    types = _array(metadata, "token_type", len(texts))
    if not all(isinstance(kind, int) for kind in types):
        raise TokenizerError("an array of integers was expected", where=_PREFIX + "token_type")
    for token, kind in enumerate(types):
        if kind == TokenType.BYTE and texts[token] not in _BYTE_TEXTS:
            raise TokenizerError(
                f"byte token {token} is called {texts[token]!r}", where=_PREFIX + "tokens"
            )
    return types


def _array(metadata: Mapping[str, Any], name: str, length: int | None = None) -> list[Any]:
    key = _PREFIX + name
    if key not in metadata:
        raise TokenizerError("the file lacks this part of its tokenizer", where=key)
    values = metadata[key]
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise TokenizerError("an array was expected", where=key)
    if length is not None and len(values) != length:
        raise TokenizerError(f"{len(values)} entries for {length} tokens", where=key)
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _strings(metadata: Mapping[str, Any], name: str, *, unique: bool = True) -> list[str]:
    values = _array(metadata, name)
    try:
        texts = [v.decode("utf-8") if isinstance(v, bytes) else v for v in values]
    except UnicodeDecodeError as error:
        raise TokenizerError(f"not UTF-8: {error}", where=_PREFIX + name) from None
    if not texts or not all(isinstance(text, str) for text in texts):
        raise TokenizerError("a non-empty array of strings was expected", where=_PREFIX + name)
    if unique and len(set(texts)) != len(texts):
        raise TokenizerError("an entry appears twice", where=_PREFIX + name)
    return texts


def _pair(merge: str) -> tuple[str, str]:
    # A piece may begin with a space, so the separator is looked for from the second character.
    at = merge.find(" ", 1)
    if at < 0:
        raise TokenizerError(f"{merge!r} is not two pieces", where=_PREFIX + "merges")
    return merge[:at], merge[at + 1 :]
