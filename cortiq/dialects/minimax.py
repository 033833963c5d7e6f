"""MiniMax: `<invoke name="…">` with `<parameter name="…">` in a `<minimax:tool_call>` element."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.markup import MarkupReader

MARKUP = MarkupReader(
    opens="<minimax:tool_call>", closes="</minimax:tool_call>",
    head=r'<invoke name="([^"<>\n]+)">', key=r'<parameter name="([^"<>\n]+)">',
    close="</parameter>", tail="</invoke>",
)  # fmt: skip

DIALECT = ToolDialect(
    "minimax",
    lambda template: MARKUP.opens in template,
    MARKUP.opens,
    MARKUP.closes,
    texts=True,
    read=MARKUP.read,
    openings={'<invoke name="': (MARKUP.tail, MARKUP.closes)},
)
