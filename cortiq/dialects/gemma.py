"""Gemma 4: `call:NAME{key:value,…}` between control tokens, strings in quotes of their own."""

from __future__ import annotations

import json
import re
from typing import Any

from cortiq.dialects.dialect import ToolCall, ToolDialect

OPENS, CLOSES, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
CALL = re.compile(r"\s*call:\s*([\w.-]+)\s*(?=\{)")
KEY = re.compile(r'\s*(?:<\|"\|>(.*?)<\|"\|>|([^:{}\[\],]+?))\s*:\s*', re.DOTALL)
PLAIN = re.compile(r"[^,\]}]+")
Read = tuple[Any, int]
"""A value, and where what follows it begins."""


def parse(text: str) -> list[ToolCall]:
    """One call."""
    call = CALL.match(text)
    if call is None:
        raise ValueError("no name with arguments")
    arguments, end = _value(text, call.end())
    if text[end:].strip():
        raise ValueError("text behind the arguments")
    return [ToolCall(call[1], arguments)]


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
    return json.loads(plain[0]), plain.end()


def _object(text: str, at: int) -> Read:
    made: dict[str, Any] = {}
    while not text.startswith("}", at := _past_spaces(text, at)):
        key = KEY.match(text, at)
        if key is None:
            raise ValueError("no key")
        made[key[2] if key[1] is None else key[1]], at = _value(text, key.end())
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
    "gemma", lambda template: OPENS in template, OPENS, CLOSES, parse, inner=(QUOTE,)
)
