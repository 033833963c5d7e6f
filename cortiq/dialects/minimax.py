"""MiniMax: `<invoke name="…">` with `<parameter name="…">` in a `<minimax:tool_call>` element."""

from __future__ import annotations

import re

from cortiq.dialects.dialect import ToolCall, ToolDialect

OPENS, CLOSES = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE = re.compile(r'\s*<invoke name="([^"]+)">(.*?)</invoke>\s*', re.DOTALL)
PARAMETER = re.compile(r'\s*<parameter name="([^"]+)">(.*?)</parameter>\s*', re.DOTALL)


def parse(text: str) -> list[ToolCall]:
    """All calls of an element."""
    found = INVOKE.findall(text)
    if not found or INVOKE.sub("", text).strip():
        raise ValueError("text between the calls")
    return [_call(name, body) for name, body in found]


def _call(name: str, body: str) -> ToolCall:
    if PARAMETER.sub("", body).strip():
        raise ValueError("text between the parameters")
    return ToolCall(name, dict(PARAMETER.findall(body)))


DIALECT = ToolDialect(
    "minimax", lambda template: OPENS in template, OPENS, CLOSES, parse, texts=True
)
