"""Text to token ids and back, incremental detokenising, stop strings, and chat templates."""

from __future__ import annotations

from cortiq.tokenizer.detokenizer import Detokenizer, StopMatcher
from cortiq.tokenizer.template import render
from cortiq.tokenizer.tokenizer import Tokenizer, byte_tokenizer

__all__ = ["Detokenizer", "StopMatcher", "Tokenizer", "byte_tokenizer", "render"]
