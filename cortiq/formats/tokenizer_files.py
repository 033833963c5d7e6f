"""A tokenizer that lies in a model's file: tokenizer.json, and what a chat bundle adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TokenizerFiles:
    """The source of a tokenizer.

    Attributes
    ----------
    data : of tokenizer.json; empty if there is none. where : for messages.
    chat_template : Jinja source. eos_ids : more ids that end a text.
    bos_id : of BOS where the tokenizer names none. add_bos : put it before a text in any case.
    pad_id : of the token that fills rows.
    words : bytes of tokens by rank, of GPT-2's words, in place of `data`. named : special ones.
    """

    data: bytes
    where: str
    chat_template: str | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    add_bos: bool = False
    pad_id: int | None = None
    words: tuple[bytes, ...] = ()
    named: Mapping[int, str] = field(default_factory=dict)
