"""Kimi: calls between control tokens, each `functions.NAME:INDEX` with a JSON object."""

from __future__ import annotations

import re

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import named_reader

OPENS, CLOSES = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
ENDS = (CLOSES, "<|tool_call_section_end|>")
HEAD = re.compile(
    r"\s*(?:<\|tool_calls?_section_begin\|>\s*)?<\|tool_call_begin\|>\s*+(?:functions\.)?"
    r"([^<\n]{1,256}?)(?::\d++)?\s*+<\|tool_call_argument_begin\|>\s*"
)
TAIL = re.compile(r"\s*(?:<\|tool_call_end\|>)?")
CLOSING = re.compile(r"\s*<\|tool_calls?_section_end\|>")

DIALECT = ToolDialect(
    "kimi",
    lambda template: OPENS in template,
    OPENS,
    CLOSES,
    inner=(CALL, ARGUMENTS, END),
    read=named_reader(OPENS, HEAD, TAIL, END, CLOSING),
    openings={**dict.fromkeys((OPENS, "<|tool_call_section_begin|>"), ENDS), CALL: (END,)},
)
