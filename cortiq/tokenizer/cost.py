"""Whether the cost of encoding can be told from a tokenizer.json, before anything of it runs.

A part that is listed here takes time and memory in proportion to the text, by a factor that the
file's numbers give. Everything else, however harmless, is of unknown cost: it works in a process
that can be ended (`engines`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cortiq.tokenizer.decode_base import literal_of
from cortiq.tokenizer.pretokenizers import PUBLISHED_PATTERNS, plain_pattern

__all__ = ["MOST_GROWTH", "MOST_STEPS", "flattened", "growth_of", "part_of_unknown_cost"]

MOST_GROWTH = 256
"""Bytes that a byte of text may become on its way to the vocabulary."""

MOST_STEPS = 16
_LONGEST_WORD = 200
_LONGEST_AFFIX = 64
_NORMALIZERS = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 3, "BertNormalizer": 6}
_NORMALIZERS |= dict.fromkeys(("Strip", "StripAccents", "Nmt"), 1)
_PRE_TOKENIZERS = {"ByteLevel": 3, "Metaspace": 4}
_PRE_TOKENIZERS |= dict.fromkeys(
    ("BertPreTokenizer", "CharDelimiterSplit", "Digits", "Punctuation", "UnicodeScripts"), 1
)
_PRE_TOKENIZERS |= dict.fromkeys(("Whitespace", "WhitespaceSplit"), 1)


def part_of_unknown_cost(described: Mapping[str, Any]) -> str:
    """The part of a tokenizer.json whose cost cannot be told from it, or nothing."""
    growth = 1.0
    parts = [
        *(("normalizer", p) for p in flattened(described.get("normalizer"), "normalizers")),
        *(("pre-tokenizer", p) for p in flattened(described.get("pre_tokenizer"), "pretokenizers")),
    ]
    for kind, part in parts[:MOST_STEPS]:
        factor = _normalizer(part) if kind == "normalizer" else _pre_tokenizer(part)
        if factor is None:
            return f"the {kind} {part.get('type')}"
        growth *= factor
    if len(parts) > MOST_STEPS or growth > MOST_GROWTH:
        return f"{len(parts)} steps that make {growth:.3g} bytes of one"
    model = described.get("model")
    return "" if isinstance(model, dict) and _bounded(model) else "the model"


def flattened(part: object, inside: str) -> Iterator[dict[str, Any]]:
    """The steps of a part, those of sequences one by one."""
    pending = [part] if part is not None else []
    while pending:
        step = pending.pop()
        items = (
            step.get(inside) if isinstance(step, dict) and step.get("type") == "Sequence" else None
        )
        if isinstance(items, list):
            pending += reversed(items)
        else:
            yield step if isinstance(step, dict) else {}


def growth_of(replace: Mapping[str, Any]) -> float | None:
    """How many bytes a step `Replace` makes of one, or None where that cannot be told."""
    pattern, content = replace.get("pattern"), replace.get("content")
    if not isinstance(pattern, dict) or not isinstance(content, str):
        return None
    literal = literal_of(pattern)
    if not literal and plain_pattern(pattern.get("Regex")) not in PUBLISHED_PATTERNS:
        return None
    return max(1.0, len(content.encode()) / len((literal or "1").encode()))


def _normalizer(step: Mapping[str, Any]) -> float | None:
    if step.get("type") == "Replace":
        return growth_of(step)
    if step.get("type") == "Prepend":  # in front of each text between two added tokens
        text = step.get("prepend")
        return 1 + len(text.encode()) / 2 if isinstance(text, str) else None
    return _NORMALIZERS.get(str(step.get("type")))


def _pre_tokenizer(step: Mapping[str, Any]) -> float | None:
    if step.get("type") != "Split":
        return _PRE_TOKENIZERS.get(str(step.get("type")))
    pattern = step.get("pattern")
    if not isinstance(pattern, dict):
        return None
    known = literal_of(pattern) or plain_pattern(pattern.get("Regex")) in PUBLISHED_PATTERNS
    return 1 if known else None


def _bounded(model: Mapping[str, Any]) -> bool:
    names = ("continuing_subword_prefix", "end_of_word_suffix")
    affixes = [model.get(name) or "" for name in names]
    if not all(isinstance(affix, str) and len(affix) <= _LONGEST_AFFIX for affix in affixes):
        return False
    if model.get("type") == "WordPiece":  # quadratic in the length of a word
        longest = model.get("max_input_chars_per_word")
        return type(longest) is int and longest <= _LONGEST_WORD
    return model.get("type") in ("BPE", "WordLevel")
