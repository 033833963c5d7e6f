"""Decide from a tokenizer.json, before any of it runs, whether the cost of encoding is bounded.

A part that is listed here takes time and memory in proportion to the text, by a factor that the
file's numbers give. Everything else, however harmless, is of unknown cost: it works in a process
that can be ended (`encoder_process`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.tokenizer.decode_base import literal_of
from cortiq.tokenizer.pretokenizers import PUBLISHED_PATTERNS, plain_pattern

__all__ = [
    "MOST_GROWTH",
    "MOST_STEPS",
    "flattened",
    "growth_of",
    "part_of_unknown_cost",
    "refuse_growth",
]

MOST_GROWTH = 1024
"""Bytes that a byte of text may become on its way to the vocabulary."""

MOST_STEPS = 16
_DELETING = ("Strip", "StripAccents", "Nmt", "BertNormalizer")
_GROWTH_HERE = 64  # each byte takes 16 more in the library, which knows where it came from
_LONGEST_WORD = 200
_LONGEST_AFFIX = 64
_GROWTH = {"NFC": 3.0, "NFD": 3.0, "NFKC": 11.0, "NFKD": 11.0, "Lowercase": 3.0}
_GROWTH |= {"BertNormalizer": 6.0, "ByteLevel": 3.0, "Metaspace": 4.0}
_GROWTH |= dict.fromkeys(("Strip", "StripAccents", "Nmt", "BertPreTokenizer", "Digits"), 1.0)
_GROWTH |= dict.fromkeys(("CharDelimiterSplit", "Punctuation", "UnicodeScripts"), 1.0)
_GROWTH |= dict.fromkeys(("Whitespace", "WhitespaceSplit"), 1.0)


def part_of_unknown_cost(described: Mapping[str, Any]) -> str:
    """Return the part of a tokenizer.json whose cost is unknown; empty if there is none."""
    steps = _steps(described)
    growth = 1.0
    for step in steps:
        factor = _growth(step)
        if factor is None:
            return f"the step {step.get('type')}"
        growth *= factor
    if growth > _GROWTH_HERE:
        return f"steps that make up to {growth:.3g} bytes of one"
    if len(steps) > MOST_STEPS:
        return f"more than {MOST_STEPS} steps"
    if not _kept_apart(described.get("added_tokens"), any(map(_deletes, steps))):
        return "added tokens that may be empty or overlap"
    model = described.get("model")
    return "" if isinstance(model, dict) and _bounded(model) else "the model"


def refuse_growth(described: Mapping[str, Any], where: str) -> None:
    """Raise an UnsupportedError if steps of known growth enlarge a text too much."""
    growth = math.prod(_growth(step) or 1.0 for step in _steps(described))
    if growth > MOST_GROWTH:
        what = f"the steps before the model make up to {growth:.3g} bytes of one"
        raise UnsupportedError(what, where=where, hint=f"at most {MOST_GROWTH} are supported")


def _steps(described: Mapping[str, Any]) -> list[dict[str, Any]]:
    normalizers = flattened(described.get("normalizer"), "normalizers")
    return [*normalizers, *flattened(described.get("pre_tokenizer"), "pretokenizers")]


def flattened(part: object, inside: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part; sequences are flattened."""
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
    """Return how many bytes a `Replace` step makes of one; None if unknown."""
    pattern, content = replace.get("pattern"), replace.get("content")
    if not isinstance(pattern, dict) or not isinstance(content, str):
        return None
    literal = literal_of(pattern)
    if not literal and plain_pattern(pattern.get("Regex")) not in PUBLISHED_PATTERNS:
        return None
    return max(1.0, len(content.encode()) / len((literal or "1").encode()))


def _growth(step: Mapping[str, Any]) -> float | None:
    """Return how many bytes a step makes of one at most; None if its cost is unknown."""
    kind = str(step.get("type"))
    if kind == "Replace":
        return growth_of(step)
    if kind == "Prepend":  # in front of each text between two added tokens
        text = step.get("prepend")
        return 1 + len(text.encode()) / 2 if isinstance(text, str) and text else None
    if kind != "Split":
        return _GROWTH.get(kind)
    pattern = step.get("pattern")
    if not isinstance(pattern, dict):
        return None
    known = literal_of(pattern) or plain_pattern(pattern.get("Regex")) in PUBLISHED_PATTERNS
    return 1.0 if known else None


def _deletes(step: Mapping[str, Any]) -> bool:
    return step.get("type") in _DELETING or step.get("content") == ""


def _kept_apart(added: object, deleted: bool) -> bool:
    """Return whether no added token becomes empty or lies in space that another absorbs.

    The library panics where they do.
    """
    listed = added if isinstance(added, list) else []
    tokens = [token for token in listed if isinstance(token, dict)]
    if deleted and any(token.get("normalized", True) for token in tokens):
        return False
    texts = [str(token.get("content")) for token in tokens]
    takes = any(token.get("lstrip") or token.get("rstrip") for token in tokens)
    return not takes or all(text == text.strip() for text in texts)


def _bounded(model: Mapping[str, Any]) -> bool:
    names = ("continuing_subword_prefix", "end_of_word_suffix")
    affixes = [model.get(name) or "" for name in names]
    if not all(isinstance(affix, str) and len(affix) <= _LONGEST_AFFIX for affix in affixes):
        return False
    if model.get("type") == "WordPiece":  # quadratic in the length of a word
        longest = model.get("max_input_chars_per_word")
        return type(longest) is int and longest <= _LONGEST_WORD
    return model.get("type") in ("BPE", "WordLevel")
