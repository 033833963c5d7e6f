"""Ways to draft: copying from the text so far, a smaller model, scripts, and combinations."""

from __future__ import annotations
