"""Qwen 3 Coder, Qwen 3.5: `<function=NAME>` and `<parameter=KEY>` in `<tool_call>` tags."""

from __future__ import annotations

import re

from cortiq.dialects.dialect import ToolCall, ToolDialect

FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def parse(text: str) -> list[ToolCall]:
    """One call."""
    function = FUNCTION.fullmatch(text)
    if function is None:
        raise ValueError("no function element")
    rest = PARAMETER.sub("", function[2])
    if rest.strip():
        raise ValueError("text between the parameters")
    found = PARAMETER.findall(function[2])
    return [ToolCall(function[1].strip(), {key.strip(): v for key, v in found})]


DIALECT = ToolDialect(
    "qwen_xml",
    lambda template: "<function=" in template,
    "<tool_call>",
    "</tool_call>",
    parse,
    texts=True,
)
