"""GLM 4.5 and later: the name, then `<arg_key>` and `<arg_value>` pairs, in `<tool_call>` tags."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.markup import MarkupReader

MARKUP = MarkupReader(
    opens="<tool_call>", closes="</tool_call>",
    head=r"([\w.-]+)(?=\s*(?:<arg_key>|</tool_call>|\Z))",
    key=r"<arg_key>([^<>]+)(?:</arg_key>(?:\s*<arg_value>)?|<arg_value>)",
    close="</arg_value>",
)  # fmt: skip

DIALECT = ToolDialect(
    "glm",
    lambda template: "<arg_key>" in template,
    MARKUP.opens,
    MARKUP.closes,
    texts=True,
    read=MARKUP.read,
)
