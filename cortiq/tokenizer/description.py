"""Parts of a tokenizer.json that is written here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["BYTE_LEVEL", "begins_with", "special_tokens"]

BYTE_LEVEL: Mapping[str, Any] = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
}  # fmt: skip


def begins_with(text: str, token: int) -> dict[str, Any]:
    """Return the post-processor that puts a token before a text."""
    parts = [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing", "single": parts,
        "pair": [*parts, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]}},
    }  # fmt: skip


def special_tokens(texts: Mapping[int, str], control: bool = True) -> list[dict[str, Any]]:
    """Return added tokens that are cut out of a text as they stand; `control`: and hidden."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": token, "content": text, **flags, "special": control}
        for token, text in sorted(texts.items())
    ]
