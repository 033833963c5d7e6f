"""DeepSeek V3.2 and V4: DSML, `invoke` and `parameter` elements with names of their own.

A parameter says whether it is a string (`string="true"`); what counts is the tool's schema.
"""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.markup import MarkupReader

MARK = "｜DSML｜"


def _dialect(name: str, word: str) -> ToolDialect:
    markup = MarkupReader(
        opens=f"<{MARK}{word}>", closes=f"</{MARK}{word}>",
        head=rf'<{MARK}invoke name="([^"<>\n]+)">',
        key=rf'<{MARK}parameter name="([^"<>\n]+)"(?: string="(?:true|false)")?>',
        close=f"</{MARK}parameter>", tail=f"</{MARK}invoke>",
    )  # fmt: skip
    return ToolDialect(
        name, lambda template: markup.opens in template, markup.opens, markup.closes, texts=True,
        read=markup.read, openings={f'<{MARK}invoke name="': (markup.tail, markup.closes)},
    )  # fmt: skip


DIALECTS = (_dialect("dsml", "function_calls"), _dialect("dsml_4", "tool_calls"))
