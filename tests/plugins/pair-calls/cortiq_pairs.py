"""A dialect from outside: a call is a JSON pair of a name and its arguments."""

from __future__ import annotations

import json

from cortiq.dialects.dialect import ToolCall, ToolDialect
from cortiq.hookspecs import hookimpl


def parse(text: str) -> list[ToolCall]:
    """One call."""
    name, arguments = json.loads(text)
    return [ToolCall(name, arguments)]


@hookimpl
def cortiq_tool_dialects() -> list[ToolDialect]:
    """The dialect of this package."""
    return [ToolDialect("pairs", lambda template: "<pair>" in template, "<pair>", "</pair>", parse)]
