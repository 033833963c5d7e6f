"""Kimi: calls between control tokens, each `functions.NAME:INDEX` with a JSON object."""

from __future__ import annotations

import json
import re

from cortiq.dialects.dialect import ToolCall, ToolDialect

OPENS, CLOSES = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL = re.compile(
    r"\s*<\|tool_call_begin\|>\s*(?:functions\.)?(.+?)(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>\s*",
    re.DOTALL,
)


def parse(text: str) -> list[ToolCall]:
    """All calls of an answer."""
    found = CALL.findall(text)
    if not found or CALL.sub("", text).strip():
        raise ValueError("text between the calls")
    calls = [ToolCall(name, json.loads(arguments)) for name, arguments in found]
    if not all(isinstance(call.arguments, dict) for call in calls):
        raise ValueError("arguments are no object")
    return calls


DIALECT = ToolDialect(
    "kimi", lambda template: OPENS in template, OPENS, CLOSES, parse,
    inner=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)  # fmt: skip
