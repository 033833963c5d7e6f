"""Text to token ids and back, incremental detokenising, stop strings, and chat templates."""

from __future__ import annotations
