"""Harmony (gpt-oss): a call is a message to `functions.NAME`, whichever header names it.

The recipient follows the channel or the role, and some models write calls to the channel of their
thinking.
"""

from __future__ import annotations

import re

from cortiq.dialects.dialect import ToolCall, ToolDialect, Tools
from cortiq.dialects.json_text import named_reader

OPENS, END = "<|channel|>commentary to=", "<|call|>"
FUNCTIONS = "functions."
ENDS = (END, "<|end|>", "<|return|>")
CHANNEL = r"(?:<\|channel\|>\s*(?:analysis|commentary)\b)"
HEAD = re.compile(
    rf"(?:<\|start\|>assistant)?\s*+{CHANNEL}?\s*+to=([\w.-]++)\s*+"
    rf"{CHANNEL}?\s*+(?:<\|constrain\|>)?\s*+\w*+\s*+<\|message\|>\s*"
)
"""A header; possessive, as runs that could be divided in many ways would cost a power of them."""

_NAMED = named_reader(
    "", HEAD, re.compile(r"\s*<\|call\|>"), END, re.compile(r"\s*<\|(?:end|return)\|>")
)


def read(text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
    """Read calls (`dialect.CallReader`); only offered tools are recipients besides functions."""
    calls, end = _NAMED(text, tools, final)
    if not all(call.name.startswith(FUNCTIONS) or call.name in tools for call in calls):
        raise ValueError("no function")
    return [ToolCall(call.name.removeprefix(FUNCTIONS), call.arguments) for call in calls], end


DIALECT = ToolDialect(
    "harmony", lambda template: "<|channel|>" in template and "functions." in template, OPENS,
    END, at_end=True, inner=("<|constrain|>", "<|message|>", "<|channel|>", "<|start|>", "<|end|>"),
    read=read,
    openings=dict.fromkeys(
        (OPENS, "<|channel|>analysis to=", "<|start|>assistant to=", " to=functions."), ENDS
    ),
)  # fmt: skip
