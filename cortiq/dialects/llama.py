"""Llama 3.1 and later: the whole answer is `{"name": …, "parameters": …}`, after a tag or not.

Several calls are separated by semicolons. Without the tag they are found as any answer that is JSON
objects (`splitter`).
"""

from __future__ import annotations

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.json_text import object_reader

TAG = "<|python_tag|>"

DIALECT = ToolDialect(
    "llama", lambda template: TAG in template or '"parameters":' in template, TAG, "",
    at_end=True, read=object_reader(TAG, ""),
)  # fmt: skip
