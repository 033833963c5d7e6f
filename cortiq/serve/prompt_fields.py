"""Fields of requests that hold prompts."""

from __future__ import annotations

from cortiq.serve.fields import Fields

MAX_PROMPTS = 256


def parse_prompts(fields: Fields, name: str) -> list[str | list[int]]:
    """Parse a field of one or several prompts, each a text or token ids."""
    expected = "a string, an array of strings, of token ids, or of arrays of token ids"
    value = fields.get(name, (str, list), expected)
    items = [value] if isinstance(value, str) or _are_ids(value) else value
    proper = items and all((isinstance(p, str) and p) or _are_ids(p) for p in items)
    if not proper or len(items) > MAX_PROMPTS:
        raise fields.wrong(name, f"{expected}, not empty, at most {MAX_PROMPTS} of them")
    return items


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
