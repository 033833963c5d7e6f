"""Seed-OSS: Qwen's functions and parameters in `<seed:tool_call>` tags."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.markup import MarkupReader

MARKUP = MarkupReader(
    opens="<seed:tool_call>", closes="</seed:tool_call>",
    head=r"<function=([^<>\n]+)>", key=r"<parameter=([^<>\n]+)>",
    close="</parameter>", tail="</function>",
)  # fmt: skip

DIALECT = ToolDialect(
    "seed",
    lambda template: MARKUP.opens in template,
    MARKUP.opens,
    MARKUP.closes,
    texts=True,
    read=MARKUP.read,
    openings={"<function=": (MARKUP.tail, MARKUP.closes)},
)
