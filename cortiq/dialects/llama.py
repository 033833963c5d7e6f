"""Llama 3.1 and later: the whole answer is `{"name": …, "parameters": …}`, after a tag or not.

Without the tag it is found as any answer that is one JSON object (`splitter`).
"""

from __future__ import annotations

from cortiq.dialects.dialect import ToolCall, ToolDialect, from_json

TAG = "<|python_tag|>"


def parse(text: str) -> list[ToolCall]:
    """One call, or several separated by semicolons."""
    try:
        return from_json(text)
    except ValueError:
        return [call for part in text.split(";") for call in from_json(part)]


DIALECT = ToolDialect(
    "llama", lambda template: TAG in template or '"parameters":' in template, TAG, "", parse,
    at_end=True,
)  # fmt: skip
