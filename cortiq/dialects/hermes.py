"""Hermes (Qwen 2.5 and 3, Granite 4, SmolLM3): a JSON object between `<tool_call>` tags."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import object_reader

OPENS, CLOSES = "<tool_call>", "</tool_call>"


def fits(template: str) -> bool:
    """Return whether the template has the tag, and no other dialect's use of it."""
    return OPENS in template and not any(other in template for other in ("<function=", "<arg_key>"))


DIALECT = ToolDialect(
    "hermes", fits, OPENS, CLOSES, wrap=(f"{OPENS}\n", f"\n{CLOSES}"),
    read=object_reader(OPENS, CLOSES),
)  # fmt: skip
