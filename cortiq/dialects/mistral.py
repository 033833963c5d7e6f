"""Mistral: `[TOOL_CALLS]`, then a JSON list of calls, or names each with `[ARGS]` and an object."""

from __future__ import annotations

import re

from cortiq.dialects.dialect import ToolCall, ToolDialect, Tools
from cortiq.dialects.json_text import NOTHING, named_reader, object_reader

CALLS, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
HEAD = re.compile(
    r"\s*(?:\[TOOL_CALLS\]\s*)?([\w.-]++)\s*+(?:\[CALL_ID\][^\[{]*+)?(?:\[ARGS\])?\s*+(?=\{)"
)
LISTED = object_reader(CALLS, "")
NAMED = named_reader(CALLS, HEAD, NOTHING, "", NOTHING)


def read(text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
    """Read calls in either way (`dialect.CallReader`)."""
    listed = text.removeprefix(CALLS).lstrip().startswith(("[{", "{", "[ "))
    return (LISTED if listed else NAMED)(text, tools, final)


DIALECT = ToolDialect(
    "mistral", lambda template: CALLS in template, CALLS, "", at_end=True, inner=(ARGS, ID),
    wrap=(f"{CALLS}[", "]"), read=read,
)  # fmt: skip
