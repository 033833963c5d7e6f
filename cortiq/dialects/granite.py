"""Granite 3: `<|tool_call|>`, then a JSON list of calls."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import object_reader

OPENS = "<|tool_call|>"

DIALECT = ToolDialect(
    "granite", lambda template: OPENS in template, OPENS, "", at_end=True,
    wrap=(f"{OPENS}[", "]"), read=object_reader(OPENS, ""),
)  # fmt: skip
