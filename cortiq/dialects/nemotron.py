"""Nemotron Nano: a JSON list of calls in one element."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import object_reader

OPENS, CLOSES = "<TOOLCALL>", "</TOOLCALL>"

DIALECT = ToolDialect(
    "nemotron", lambda template: OPENS in template, OPENS, CLOSES,
    wrap=(f"{OPENS}[", f"]{CLOSES}"), read=object_reader(OPENS, CLOSES),
)  # fmt: skip
