"""Mistral: `[TOOL_CALLS]`, then a JSON list of calls, or names each with `[ARGS]` and an object."""

from __future__ import annotations

import json

from cortiq.dialects.dialect import ToolCall, ToolDialect, from_json

CALLS, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def parse(text: str) -> list[ToolCall]:
    """All calls of an answer."""
    if text.lstrip().startswith(("[{", "{")):
        return from_json(text)
    return [_named(part) for part in text.split(CALLS)]


def _named(text: str) -> ToolCall:
    name, found, arguments = text.partition(ARGS)
    if not found:
        name, arguments = text[: text.find("{")], text[text.find("{") :]
    value = json.loads(arguments)
    name = name.split(ID)[0].strip()
    if not name or not isinstance(value, dict):
        raise ValueError("no name with an object")
    return ToolCall(name, value)


DIALECT = ToolDialect(
    "mistral", lambda template: CALLS in template, CALLS, "", parse, at_end=True,
    inner=(ARGS, ID),
    wrap=(f"{CALLS}[", "]"),
)  # fmt: skip
