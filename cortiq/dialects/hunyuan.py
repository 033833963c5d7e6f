"""Hunyuan: a JSON list of calls in one element."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import object_reader

OPENS, CLOSES = "<tool_calls>", "</tool_calls>"

DIALECT = ToolDialect(
    "hunyuan", lambda template: OPENS in template, OPENS, CLOSES,
    wrap=(f"{OPENS}[", f"]{CLOSES}"), read=object_reader(OPENS, CLOSES),
)  # fmt: skip
