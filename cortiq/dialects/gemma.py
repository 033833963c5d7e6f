"""Gemma 4: `call:NAME{key:value,…}` between control tokens, strings in quotes of their own."""

from __future__ import annotations

import re
from typing import Any

from cortiq.dialects.dialect import ToolCall, ToolDialect, Tools, Unfinished
from cortiq.dialects.json_text import ending, read_json

OPENS, CLOSES, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
CLOSING = re.compile(r"\s*<tool_call\|>")
CALL = re.compile(r"\s*call:\s*([\w.-]+)\s*(?=\{)")
KEY = re.compile(r'\s*(?:<\|"\|>(.*?)<\|"\|>|([^:{}\[\],]+?))\s*:\s*', re.DOTALL)
PLAIN = re.compile(r"[^,\]}]+")
Read = tuple[Any, int]
"""A value, and where what follows it begins."""


def read(text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
    """Read calls (`dialect.CallReader`)."""
    calls: list[ToolCall] = []
    at = end = len(OPENS)
    try:
        while call := CALL.match(text, at):
            arguments, end = _value(text, call.end())
            calls.append(ToolCall(call[1], arguments))
            at = end
    except ValueError:
        if text.count(QUOTE) % 2 and not final:
            raise Unfinished("the text ends inside a string") from None
        raise
    return calls, ending(text, end, CLOSING, final)


def _value(text: str, at: int) -> Read:
    at = _past_spaces(text, at)
    if text.startswith(QUOTE, at):
        end = text.index(QUOTE, at + len(QUOTE))  # ValueError where it never ends
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text[at : at + 1] == "{":
        return _object(text, at + 1)
    if text[at : at + 1] == "[":
        return _list(text, at + 1)
    plain = PLAIN.match(text, at)
    if plain is None:
        raise ValueError("no value")
    return read_json(plain[0]), plain.end()


def _object(text: str, at: int) -> Read:
    made: dict[str, Any] = {}
    while not text.startswith("}", at := _past_spaces(text, at)):
        key = KEY.match(text, at)
        if key is None:
            raise ValueError("no key")
        name = key[2] if key[1] is None else key[1]
        if name in made:
            raise ValueError("a key that appears twice")
        made[name], at = _value(text, key.end())
        at = _past_comma(text, at, "}")
    return made, at + 1


def _list(text: str, at: int) -> Read:
    made = []
    while not text.startswith("]", at := _past_spaces(text, at)):
        value, at = _value(text, at)
        made.append(value)
        at = _past_comma(text, at, "]")
    return made, at + 1


def _past_comma(text: str, at: int, end: str) -> int:
    at = _past_spaces(text, at)
    if text.startswith(",", at):
        return at + 1
    if not text.startswith(end, at):
        raise ValueError("neither a comma nor the end")
    return at


def _past_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


DIALECT = ToolDialect(
    "gemma", lambda template: OPENS in template, OPENS, CLOSES, inner=(QUOTE,), read=read,
    bare=("call:",),
)  # fmt: skip
