"""Dialects: how models write tool calls and their thinking, and how both are told from the answer.

A dialect is a file; `cortiq_tool_dialects` brings further ones. Nothing here imports numpy.
"""

from __future__ import annotations
