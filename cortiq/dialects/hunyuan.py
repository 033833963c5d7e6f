"""Hunyuan: a JSON list of calls in one element."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect, from_json

OPENS, CLOSES = "<tool_calls>", "</tool_calls>"

DIALECT = ToolDialect(
    "hunyuan", lambda template: OPENS in template, OPENS, CLOSES, from_json,
    wrap=(f"{OPENS}[", f"]{CLOSES}"),
)  # fmt: skip
