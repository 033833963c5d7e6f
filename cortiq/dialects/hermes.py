"""Hermes (Qwen 2.5 and 3, Granite 4, SmolLM3): a JSON object between `<tool_call>` tags."""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect, from_json


def fits(template: str) -> bool:
    """The tag, and none of the dialects that use it for something else."""
    return "<tool_call>" in template and not any(
        other in template for other in ("<function=", "<arg_key>")
    )


DIALECT = ToolDialect(
    "hermes", fits, "<tool_call>", "</tool_call>", from_json,
    wrap=("<tool_call>\n", "\n</tool_call>"),
)  # fmt: skip
