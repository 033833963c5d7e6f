"""Apertus: a JSON list of objects, each of which has a tool's name as its one key."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cortiq.dialects.dialect import ToolCall, ToolDialect, Tools
from cortiq.dialects.json_text import arguments_of, decode, ending, object_reader

OPENS, CLOSES = "<|tools_prefix|>", "<|tools_suffix|>"
CLOSING = re.compile(rf"\s*{re.escape(CLOSES)}")
NAMED = re.compile(rf'{re.escape(OPENS)}\s*\[?\s*\{{\s*"name"\s*:\s*"')


def read(text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
    """Read calls (`dialect.CallReader`)."""
    if NAMED.match(text):
        return _OBJECTS(text, tools, final)
    start = len(OPENS) + len(text[len(OPENS) :]) - len(text[len(OPENS) :].lstrip())
    value, end = decode(text, start, CLOSES)
    calls = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, Mapping) or len(item) != 1:
            raise ValueError("no object with the name of a tool")
        ((name, given),) = item.items()
        calls.append(ToolCall(name, arguments_of(given)))
    return calls, ending(text, end, CLOSING, final)


_OBJECTS = object_reader(OPENS, CLOSES)

DIALECT = ToolDialect("apertus", lambda template: OPENS in template, OPENS, CLOSES, read=read)
