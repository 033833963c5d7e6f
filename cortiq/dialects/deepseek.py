"""DeepSeek V2.5 to V3.1: calls between control tokens, arguments in a JSON block or bare."""

from __future__ import annotations

import json
import re

from cortiq.dialects.dialect import ToolCall, ToolDialect

OPENS, CLOSES = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL = re.compile(
    r"\s*<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(.+?)"
    r"(?:<｜tool▁sep｜>|\n```json\n)(.*?)(?:\n```)?<｜tool▁call▁end｜>\s*",
    re.DOTALL,
)


def parse(text: str) -> list[ToolCall]:
    """All calls of an answer."""
    found = CALL.findall(text)
    if not found or CALL.sub("", text).strip():
        raise ValueError("text between the calls")
    calls = [ToolCall(name.strip(), json.loads(arguments)) for name, arguments in found]
    if not all(isinstance(call.arguments, dict) for call in calls):
        raise ValueError("arguments are no object")
    return calls


DIALECT = ToolDialect(
    "deepseek",
    lambda template: "<｜tool▁calls▁begin｜>" in template,
    OPENS,
    CLOSES,
    parse,
    inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
