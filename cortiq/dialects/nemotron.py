"""Nemotron Nano: a JSON list of calls in one element."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect, from_json

OPENS, CLOSES = "<TOOLCALL>", "</TOOLCALL>"

DIALECT = ToolDialect(
    "nemotron", lambda template: OPENS in template, OPENS, CLOSES, from_json,
    wrap=(f"{OPENS}[", f"]{CLOSES}"),
)  # fmt: skip
