"""The tokenizer: one class over the vocabularies of GGUF files, Hugging Face folders and bytes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from cortiq.arguments import path_of
from cortiq.errors import NoTokenizerError, TokenizerError, shown
from cortiq.tokenizer.byte_vocabulary import ByteVocabulary
from cortiq.tokenizer.frames import FramedText, framed
from cortiq.tokenizer.special_tokens import RESERVED, SpecialTokens
from cortiq.tokenizer.vocabulary import TextStream, Vocabulary

__all__ = ["TextStream", "Tokenizer", "Vocabulary", "byte_tokenizer"]


class Tokenizer:
    """Text <-> token ids.

    Build one with `Tokenizer.from_gguf`, `Tokenizer.from_folder` or `byte_tokenizer`.

    Attributes
    ----------
    vocab_size : number of ids this tokenizer knows (a model may have more logits).
    bos_id, eos_id, unknown_id : ids, or None where the file names none.
    eos_ids : every token that ends an answer: EOS, end of turn, end of message, and what
        generation_config.json lists.
    add_bos_default : whether the file requests BOS before a text.
    chat_templates : name -> Jinja source; the usual one is called "default".
    absent : why the model has no tokenizer (`MissingTokenizer`), or None.
    """

    absent: NoTokenizerError | None = None

    def __init__(
        self,
        vocabulary: Vocabulary,
        special: SpecialTokens,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._hidden_ids = special.hidden_ids
        self.vocab_size = vocabulary.size
        self.bos_id = special.bos_id
        self.eos_id = special.eos_id
        self.eos_ids = special.eos_ids
        self.unknown_id = special.unknown_id
        self.add_bos_default = special.add_bos
        self._frames = special.frames
        self.chat_templates = dict(chat_templates or {})

    def __repr__(self) -> str:
        template = "with" if self.chat_templates else "without"
        return (
            f"<Tokenizer: {self.vocab_size} ids, bos {self.bos_id}, eos {self.eos_id}, "
            f"{template} chat template>"
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Open the tokenizer described by the `tokenizer.*` keys of a GGUF file's metadata.

        Raises
        ------
        UnsupportedError : the tokenizer model or pre-tokenizer is not implemented.
        TokenizerError : keys are missing, or contradict each other.
        """
        from cortiq.tokenizer.from_gguf import load_gguf

        return cls(*load_gguf(metadata))

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Open the tokenizer of a Hugging Face folder: tokenizer.json and its configs."""
        from cortiq.tokenizer.from_folder import load_folder

        return cls(*load_folder(path_of(path, "Tokenizer.from_folder")))

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]:
        """Return the ids of `text`.

        Parameters
        ----------
        add_bos : put BOS in front; None follows the file.
        parse_special : read the texts of control tokens (`<|im_start|>`) as those tokens. Off by
            default, so that a user's words cannot become control tokens.

        Raises
        ------
        TokenizerError : it is no text, is not valid Unicode, or has characters without a token.
        """
        check_unicode(text)
        ids = self._vocabulary.encode(text, parse_special)
        if self.add_bos_default if add_bos is None else add_bos:
            ids.insert(0, self._require_bos())
        return ids

    def framed(self, text: str, second: str | None = None) -> FramedText:
        """Return the ids of a text, or of a pair, with all that the file puts around them.

        Raises
        ------
        TokenizerError : the file has no form for pairs; or a text cannot be encoded.
        """
        if self._frames is None:
            if second is not None:
                what = "the tokenizer has no form for a pair of texts"
                raise TokenizerError(what, hint="its post-processor would say it")
            ids = self.encode(text)
            return FramedText(tuple(ids), (0,) * len(ids))
        texts = {"A": self.encode(text, add_bos=False)}
        if second is None:
            return framed(self._frames.single, texts)
        return framed(self._frames.pair, texts | {"B": self.encode(second, add_bos=False)})

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, continuation: bool = False
    ) -> str:
        """Return the text of `ids`; incomplete characters become U+FFFD.

        Parameters
        ----------
        skip_special : leave out control and unknown tokens (user-defined tokens stay).
        continuation : the ids follow other text, so a leading space belongs to them. Otherwise the
            space that encoding put before a text is removed.

        Raises
        ------
        TokenizerError : they are no integers, or negative.
        """
        hidden = self._hidden_ids if skip_special else ()
        stream = self.stream(continuation=continuation)
        add, known = stream.add, self.has_piece
        texts = [add(token) for token in _whole(ids) if token not in hidden and known(token)]
        return "".join(texts) + stream.finish()

    def stream(self, *, continuation: bool) -> TextStream:
        """Open a stream that decodes ids below `vocab_size`."""
        return self._vocabulary.stream(continuation)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, control tokens included; possibly part of a character.

        None for an id from `vocab_size` on: models have more logits than their tokenizer has ids.
        """
        if type(token_id) is not int:
            (token_id,) = _whole([token_id])
        return self._vocabulary.piece_bytes(token_id) if self.has_piece(token_id) else b""

    def has_piece(self, token_id: int) -> bool:
        """Return whether the id has a piece; a TokenizerError for a negative id."""
        if token_id < 0:
            raise TokenizerError(f"token id {token_id} is negative")
        return token_id < self.vocab_size

    @cached_property
    def longest_token(self) -> int:
        """Most bytes that a token stands for, at least 1."""
        return max((len(self.token_bytes(i)) for i in range(self.vocab_size)), default=1) or 1

    def token_id(self, text: str) -> int | None:
        """Return the id of the token whose own text is `text`, control tokens included, or None."""
        _check_text(text)
        return self._vocabulary.find(text)

    def is_special(self, token_id: int) -> bool:
        """Return whether the id is a control or unknown token, which decoding skips."""
        if type(token_id) is not int:
            (token_id,) = _whole([token_id])
        return token_id in self._hidden_ids

    @cached_property
    def reserved_token(self) -> str:
        """Text of the last control token that no text has; empty where there is none."""
        texts = (self._text_of(token) for token in sorted(self._hidden_ids, reverse=True))
        return next((text for text in texts if RESERVED.search(text)), "")

    @property
    def bos_token(self) -> str:
        """Text of BOS, or an empty string: what chat templates call `bos_token`."""
        return self._text_of(self.bos_id)

    @property
    def eos_token(self) -> str:
        """Text of EOS, or an empty string: what chat templates call `eos_token`."""
        return self._text_of(self.eos_id)

    def chat_template(self, *, tools: bool = False) -> str | None:
        """Return the chat template; the one for tools if there is one and tools are used."""
        if tools and "tool_use" in self.chat_templates:
            return self.chat_templates["tool_use"]
        return self.chat_templates.get("default")

    def _text_of(self, token_id: int | None) -> str:
        return "" if token_id is None else self._vocabulary.own_text(token_id)

    def _require_bos(self) -> int:
        if self.bos_id is None:
            raise TokenizerError(
                "BOS was requested, but the tokenizer has none", hint="Encode with add_bos=False."
            )
        return self.bos_id


def _whole(ids: Iterable[int]) -> list[int]:
    """Return token ids as `int`; NumPy integers are converted."""
    try:
        return [operator.index(token) for token in ids]
    except TypeError:  # no iterable, or no integers in it
        what = f"token ids are integers, which {shown(ids)} does not hold"
        raise TokenizerError(what, hint="give a list of integers") from None


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise TokenizerError(f"a text is wanted, not {shown(text)}", hint="give a str")


def check_unicode(text: str) -> None:
    """Refuse a value that is no text, and a text with lone surrogates: it has no UTF-8 form."""
    _check_text(text)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text is not valid Unicode: character {error.start} is a lone surrogate "
            f"(U+{ord(text[error.start]):04X})",
            hint="Was it read from bytes that are not UTF-8?",
        ) from None


def byte_tokenizer(vocab_size: int = 258) -> Tokenizer:
    """Return the tokenizer of synthetic models: ids 0-255 are bytes, 256 `<bos>`, 257 `<eos>`.

    Further ids up to `vocab_size` are shown as `<258>`, `<259>`, ...; a vocabulary too small for
    BOS and EOS has none. No BOS is added by default.
    """
    if vocab_size < 1:
        raise TokenizerError(f"a vocabulary of {vocab_size} ids is empty")
    if vocab_size < 258:
        return Tokenizer(ByteVocabulary(vocab_size), SpecialTokens())
    special = SpecialTokens(
        bos_id=256, eos_id=257, eos_ids=(257,), hidden_ids=frozenset({256, 257})
    )
    return Tokenizer(ByteVocabulary(vocab_size), special)
