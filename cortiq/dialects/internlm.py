"""InternLM 2: a JSON object of the action `plugin`."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import object_reader

OPENS, CLOSES = "<|action_start|><|plugin|>", "<|action_end|>"

DIALECT = ToolDialect(
    "internlm", lambda template: OPENS in template, OPENS, CLOSES, wrap=(OPENS, CLOSES),
    read=object_reader(OPENS, CLOSES),
)  # fmt: skip
