"""GLM 4.5 and later: the name, then `<arg_key>` and `<arg_value>` pairs, in `<tool_call>` tags."""

from __future__ import annotations

import re

from cortiq.dialects.dialect import ToolCall, ToolDialect

PAIR = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL
)  # fmt: skip
CALL = re.compile(r"\s*([\w.-]+)\s*((?:<arg_key>.*</arg_value>)?)\s*", re.DOTALL)


def parse(text: str) -> list[ToolCall]:
    """One call."""
    call = CALL.fullmatch(text)
    if call is None or PAIR.sub("", call[2]).strip():
        raise ValueError("no name with pairs")
    pairs = PAIR.findall(call[2])
    return [ToolCall(call[1], {key.strip(): value for key, value in pairs})]


DIALECT = ToolDialect(
    "glm",
    lambda template: "<arg_key>" in template,
    "<tool_call>",
    "</tool_call>",
    parse,
    texts=True,
)
