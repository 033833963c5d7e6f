"""Granite 3: `<|tool_call|>`, then a JSON list of calls."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect, from_json

OPENS = "<|tool_call|>"

DIALECT = ToolDialect(
    "granite", lambda template: OPENS in template, OPENS, "", from_json, at_end=True,
    wrap=(f"{OPENS}[", "]"),
)  # fmt: skip
