"""Special tokens: which ids they are, and cutting their texts out of a raw prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from cortiq.tokenizer.frames import Frames

__all__ = [
    "END_OF_TURN_TEXTS",
    "IMAGE_TEXTS",
    "RESERVED",
    "SpecialTokenSplitter",
    "SpecialTokens",
    "TokenType",
    "find_end_tokens",
]

# Texts of control tokens that end an answer in public model families. Files often name only one
# end token, while chat models also emit these.
END_OF_TURN_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<turn|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    }
)


IMAGE_TEXTS = ("<start_of_image>", "<end_of_image>")
"""Marks around an image, which GGUF calls user-defined and a folder special: no part of a text."""


RESERVED = re.compile(r"reserved|unused|<SPECIAL_\d|(?:vision|image|video|fim)_pad", re.IGNORECASE)
"""Texts of control tokens that no text has, in public model families."""


class TokenType(IntEnum):
    """The kinds of token that GGUF's `tokenizer.ggml.token_type` tells apart."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class SpecialTokens:
    """The ids a runtime has to know, and whether the file puts BOS before a text.

    `eos_ids` are all tokens that end an answer, `eos_id` the one the file calls EOS; `hidden_ids`
    are those that decoding skips (control and unknown tokens). `frames` is what the file puts
    around one text and around a pair, None where it says nothing of that.
    """

    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    unknown_id: int | None = None
    hidden_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    frames: Frames | None = None


def find_end_tokens(named: Iterable[int | None], control: Mapping[str, int]) -> tuple[int, ...]:
    """Find end tokens: those the file names first, then control tokens with a well-known text.

    `<|end|>` is left out where `<|return|>` and `<|call|>` exist: there it only ends one message
    of several in an answer.
    """
    found = [token for token in named if token is not None]
    texts = END_OF_TURN_TEXTS & control.keys()
    if {"<|return|>", "<|call|>"} <= texts:
        texts -= {"<|end|>"}
    found += sorted(control[text] for text in texts)
    return tuple(dict.fromkeys(found))


class SpecialTokenSplitter:
    """Cuts token texts out of a raw text before anything else processes it.

    Longest text first (in bytes), each over the whole of what is still uncut, from left to right.
    User-defined tokens are always cut; control tokens only where special parsing is on.
    """

    def __init__(self, user_defined: Mapping[str, int], control: Mapping[str, int]) -> None:
        self._always = _longest_first(user_defined)
        self._parsed = _longest_first({**control, **user_defined})

    def cut(self, text: str, parse_special: bool) -> list[str | int]:
        """Split `text` into strings and the ids of special tokens between them, in order."""
        table = self._parsed if parse_special else self._always
        parts: list[str | int] = [text] if text else []
        for token_text, token_id in table:
            if token_text in text:
                parts = _cut_one(parts, token_text, token_id)
        return parts


def _longest_first(table: Mapping[str, int]) -> list[tuple[str, int]]:
    items = [(text, token) for text, token in table.items() if text]
    return sorted(items, key=lambda item: (-len(item[0].encode("utf-8")), item[1]))


def _cut_one(parts: list[str | int], token_text: str, token_id: int) -> list[str | int]:
    result: list[str | int] = []
    for part in parts:
        if isinstance(part, int) or token_text not in part:
            result.append(part)
            continue
        for index, piece in enumerate(part.split(token_text)):
            if index:
                result.append(token_id)
            if piece:
                result.append(piece)
    return result
