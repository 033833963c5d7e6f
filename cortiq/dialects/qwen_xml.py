"""Qwen 3 Coder, Qwen 3.5: `<function=NAME>` and `<parameter=KEY>` in `<tool_call>` tags."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.markup import MarkupReader

MARKUP = MarkupReader(
    opens="<tool_call>", closes="</tool_call>",
    head=r"<function=([^<>\n]+)>", key=r"<parameter=([^<>\n]+)>",
    close="</parameter>", tail="</function>", lines=True,
)  # fmt: skip

DIALECT = ToolDialect(
    "qwen_xml",
    lambda template: "<function=" in template,
    MARKUP.opens,
    MARKUP.closes,
    texts=True,
    read=MARKUP.read,
    openings={"<function=": (MARKUP.tail, MARKUP.closes)},
)
