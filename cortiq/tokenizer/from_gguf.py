"""Tokenizers from GGUF metadata: byte-level BPE ("gpt2"), character-level BPE ("gemma4"),
score-based vocabularies ("llama") and the longest match ("rwkv"). `gguf_pieces` has encoders'.

Keys and their meaning are those of the GGUF specification; where it is silent, the behaviour of
llama.cpp is followed (defaults of BOS, the space in front of a text, which tokens are cut out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from cortiq.errors import NoTokenizerError, TokenizerError, UnsupportedError
from cortiq.tokenizer.byte_level import ByteLevelEncoder, piece_bytes
from cortiq.tokenizer.char_level import CharLevelEncoder
from cortiq.tokenizer.decoders import ByteStream
from cortiq.tokenizer.gguf_fields import (
    BYTE_TEXTS,
    HIDDEN,
    PREFIX,
    Tokens,
    array,
    flag,
    named_id,
    strings,
    token_types,
)
from cortiq.tokenizer.gguf_pieces import frames_in_gguf, unigram, word_pieces
from cortiq.tokenizer.library_vocabulary import LibraryVocabulary
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
from cortiq.tokenizer.vocabulary import Vocabulary

__all__ = ["load_gguf"]


class _GGUFVocabulary:
    """Tokens, and the two ways of turning uncut text into ids."""

    def __init__(
        self,
        tokens: Tokens,
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
        self._cuts = SpecialTokenSplitter(tokens.of(TokenType.USER_DEFINED), tokens.of(*HIDDEN))

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
        if kind in (*HIDDEN, TokenType.USER_DEFINED):
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
) -> tuple[Vocabulary, SpecialTokens, dict[str, str]]:
    """Load vocabulary, special tokens and chat templates from a GGUF file's metadata."""
    model = metadata.get(PREFIX + "model")
    if model in (None, "none", "no_vocab"):
        message = "the file has no tokenizer: give token ids instead of text"
        hint = "on the command line with --ids"
        raise NoTokenizerError(message, where=PREFIX + "model", hint=hint)
    known = sorted(_BUILDERS.keys() | _ENCODERS.keys())
    if not isinstance(model, str) or model not in known:
        raise UnsupportedError(
            f"tokenizer model {model!r} is not supported",
            where=PREFIX + "model",
            hint=f"Supported: {', '.join(known)}.",
        )
    characters = "gemma4" in (model, metadata.get(PREFIX + "pre"))
    texts = strings(metadata, "tokens", unique=not characters)
    tokens = Tokens(texts, token_types(metadata, texts))
    if model in _ENCODERS:
        made = _ENCODERS[model](metadata, tokens)
        return made, _framed_tokens(metadata, tokens, made), _chat_templates(metadata)
    vocabulary, add_bos = _BUILDERS[model](metadata, tokens)
    special = _special_tokens(metadata, tokens, model == "llama", add_bos)
    return vocabulary, special, _chat_templates(metadata)


def _byte_level(metadata: Mapping[str, Any], tokens: Tokens) -> tuple[_GGUFVocabulary, bool]:
    name = metadata.get(PREFIX + "pre")
    if name is None:
        raise UnsupportedError(
            "the file does not name the pre-tokenizer of its vocabulary",
            where=PREFIX + "pre",
            hint="It was written by an old converter; convert the model again.",
        )
    if name in CHARACTER_LEVEL:
        return _char_level(metadata, tokens)[0], False
    pre = pre_tokenizer(str(name))
    merges = [_pair(merge) for merge in strings(metadata, "merges")]
    encoder = ByteLevelEncoder(tokens.but(*HIDDEN), merges, pre)
    return _GGUFVocabulary(tokens, encoder.encode, piece_bytes, leading_space=False), pre.add_bos


def _score_based(metadata: Mapping[str, Any], tokens: Tokens) -> tuple[_GGUFVocabulary, bool]:
    scores = array(metadata, "scores", tokens.size)
    if not all(isinstance(score, (int, float)) and math.isfinite(score) for score in scores):
        raise TokenizerError("a token's score is not a finite number", where=PREFIX + "scores")
    of_byte = tokens.of(TokenType.BYTE)
    encoder = ScoreEncoder(
        tokens.but(*HIDDEN, TokenType.BYTE),
        scores,
        {byte: of_byte[text] for byte, text in enumerate(BYTE_TEXTS) if text in of_byte},
        named_id(metadata, "unknown", tokens.size, 0),
    )

    def encode_text(text: str) -> list[int]:
        return encoder.encode(text.replace(" ", SPACE))

    spaced = flag(metadata, "add_space_prefix", True)
    return _GGUFVocabulary(tokens, encode_text, _spaced_bytes, leading_space=spaced), True


def _char_level(metadata: Mapping[str, Any], tokens: Tokens) -> tuple[_GGUFVocabulary, bool]:
    merges = [_pair(merge) for merge in strings(metadata, "merges")]
    encoder = CharLevelEncoder(tokens.but(*HIDDEN), merges)
    return _GGUFVocabulary(tokens, encoder.encode, _spaced_bytes, leading_space=False), True


def _longest_match(metadata: Mapping[str, Any], tokens: Tokens) -> tuple[_GGUFVocabulary, bool]:
    normal = tokens.of(TokenType.NORMAL)
    encoder = LongestMatchEncoder({unescaped(text): token for text, token in normal.items()})
    return _GGUFVocabulary(tokens, encoder.encode, unescaped, leading_space=False), False


def _spaced_bytes(text: str) -> bytes:
    """Return the bytes of a piece in which a space is written ▁."""
    return text.replace(SPACE, " ").encode("utf-8")


_BUILDERS = {
    "gemma4": _char_level, "gpt2": _byte_level, "llama": _score_based, "rwkv": _longest_match,
}  # fmt: skip
_ENCODERS = {"bert": word_pieces, "t5": unigram}


def _framed_tokens(
    metadata: Mapping[str, Any], tokens: Tokens, vocabulary: LibraryVocabulary
) -> SpecialTokens:
    """Return the special tokens of an encoder, whose texts have the vocabulary's frames."""
    first = vocabulary.first_id
    eos = named_id(metadata, "eos", tokens.size, None)
    return SpecialTokens(
        bos_id=named_id(metadata, "bos", tokens.size, first),
        eos_id=eos,
        eos_ids=find_end_tokens([eos], {}),
        unknown_id=named_id(metadata, "unknown", tokens.size, None),
        hidden_ids=frozenset(tokens.of(*HIDDEN).values()),
        add_bos=first is not None,
        frames=vocabulary.frames,
    )


def _special_tokens(
    metadata: Mapping[str, Any], tokens: Tokens, score_based: bool, add_bos: bool
) -> SpecialTokens:
    size = tokens.size
    # Old score-based files leave these out: they are Llama 1's ids. Byte-level files have no rule.
    bos, eos, unknown = (
        named_id(metadata, name, size, default if score_based else None)
        for name, default in (("bos", 1), ("eos", 2), ("unknown", 0))
    )
    others = [named_id(metadata, name, size, None) for name in ("eot", "eom")]
    add_bos = flag(metadata, "add_bos_token", add_bos)
    if add_bos and bos is None:
        raise TokenizerError(
            "the tokenizer puts BOS before a text, but the file does not say which token it is",
            where=PREFIX + "bos_token_id",
        )
    defined = tokens.of(TokenType.USER_DEFINED)
    marks = {defined[text] for text in IMAGE_TEXTS if text in defined}
    hidden = frozenset(tokens.of(*HIDDEN).values()) | marks
    ends = find_end_tokens([eos, *others], tokens.of(TokenType.CONTROL))
    frames = frames_in_gguf(metadata, size, bos=bos if add_bos else None)
    return SpecialTokens(bos, eos, ends, unknown, hidden, add_bos, frames)


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    # Keys only: looking at every value would decode the whole vocabulary once more.
    found = [name for name in metadata if name == key or name.startswith(key + ".")]
    templates = {name: str(metadata[name]) for name in found}
    return {
        name.removeprefix(key).lstrip(".") or "default": NAMED_TEMPLATES.get(text, text)
        for name, text in templates.items()
    }


def _pair(merge: str) -> tuple[str, str]:
    # A piece may begin with a space, so the separator is looked for from the second character.
    at = merge.find(" ", 1)
    if at < 0:
        raise TokenizerError(f"{merge!r} is not two pieces", where=PREFIX + "merges")
    return merge[:at], merge[at + 1 :]
