"""Harmony (gpt-oss): a call is a message of the commentary channel to `functions.NAME`."""

from __future__ import annotations

import json
import re

from cortiq.dialects.dialect import ToolCall, ToolDialect

OPENS = "<|channel|>commentary to="
CALL = re.compile(
    r"functions\.([\w.-]+)\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>(.*)", re.DOTALL
)


def parse(text: str) -> list[ToolCall]:
    """One call."""
    call = CALL.fullmatch(text)
    arguments = json.loads(call[2]) if call else None
    if call is None or not isinstance(arguments, dict):
        raise ValueError("no function with an object")
    return [ToolCall(call[1], arguments)]


DIALECT = ToolDialect(
    "harmony", lambda template: "<|channel|>" in template and "functions." in template, OPENS,
    "<|call|>", parse, at_end=True,
    inner=("<|constrain|>", "<|message|>", "<|channel|>"),
)  # fmt: skip
