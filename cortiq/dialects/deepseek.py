"""DeepSeek V2.5 to V3.1: calls between control tokens, arguments in a JSON block or bare."""

from __future__ import annotations

import re

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import named_reader

OPENS, CLOSES = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
HEAD = re.compile(
    rf"\s*(?:{OPENS}\s*)?{CALL}\s*+"
    rf"(?:function{SEPARATOR}\s*+([^<\n]{{1,256}}?)[ \t]*+\n"
    rf"|([^<\n]{{1,256}}?)\s*+{SEPARATOR})\s*(?:```(?:json)?\s*)?"
)
TAIL = re.compile(rf"\s*(?:```\s*)?(?:{END})?")

DIALECT = ToolDialect(
    "deepseek",
    lambda template: OPENS in template,
    OPENS,
    CLOSES,
    inner=(CALL, SEPARATOR, END),
    read=named_reader(OPENS, HEAD, TAIL, END, re.compile(rf"\s*{CLOSES}")),
    openings={CALL: (END,)},
)
