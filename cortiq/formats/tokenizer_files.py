"""A tokenizer that lies in a model's file: tokenizer.json, and what a chat bundle adds to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenizerFiles:
    """The source of a tokenizer.

    Attributes
    ----------
    data : of tokenizer.json; empty if there is none. where : for messages.
    chat_template : Jinja source. eos_ids : more ids that end a text.
    bos_id : of BOS where the tokenizer names none. add_bos : put it before a text in any case.
    pad_id : of the token that fills rows.
    """

    data: bytes
    where: str
    chat_template: str | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    add_bos: bool = False
    pad_id: int | None = None
