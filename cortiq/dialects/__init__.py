"""Dialects: models' formats for tool calls and thinking, and separating both from the answer.

A dialect is a file; plugins add further ones by `cortiq_tool_dialects`. The package does not import
numpy.
"""

from __future__ import annotations
