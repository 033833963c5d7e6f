"""Command R7B and Command A: a JSON list of actions between control tokens."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import object_reader

OPENS, CLOSES = "<|START_ACTION|>", "<|END_ACTION|>"

DIALECT = ToolDialect(
    "cohere", lambda template: OPENS in template, OPENS, CLOSES, read=object_reader(OPENS, CLOSES)
)
