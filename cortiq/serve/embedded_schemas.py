"""JSON schemas embedded in another one, with their references rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.dialects.schema import Schema

VALUE_KEYWORDS = frozenset({"const", "enum", "default", "examples"})
"""Words of a schema whose values are values, not schemas."""
NAMING_KEYWORDS = frozenset({
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
})  # fmt: skip
"""Words that hold schemas by names of the user's own, none of which is a word."""


def relocated(schema: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """Return a schema for embedding at `pointer` of another one.

    Its `$defs` and `definitions` go with it, and every reference into the schema, `#` itself
    included, points to the new place.

    Parameters
    ----------
    pointer : where the schema will be, such as `#/anyOf/0/properties/arguments`.
    """
    own = schema.get("$id")
    made: dict[str, Any] = _relocated(schema, pointer, own if isinstance(own, str) else None)
    made.pop("$id", None)  # a schema with an address of its own would be a document of its own
    return made


def _relocated(value: Any, pointer: str, own: str | None) -> Any:
    if isinstance(value, list):
        return [_relocated(item, pointer, own) for item in value]
    if not isinstance(value, Mapping):
        return value
    made: dict[str, Any] = {}
    for word, inner in value.items():
        if word == "$ref" and isinstance(inner, str):
            made[word] = _reference(inner, pointer, own)
        elif word in NAMING_KEYWORDS and isinstance(inner, Mapping):
            made[word] = {name: _relocated(each, pointer, own) for name, each in inner.items()}
        else:
            made[word] = inner if word in VALUE_KEYWORDS else _relocated(inner, pointer, own)
    return made


def _reference(reference: str, pointer: str, own: str | None) -> str:
    if own is not None and reference.partition("#")[0] == own:
        reference = "#" + reference.partition("#")[2]
    return pointer + reference[1:] if reference == "#" or reference[:2] == "#/" else reference


def objects_only(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema that allows only objects, or None if `schema` allows none."""
    allowed = Schema(schema).types()
    if "object" not in allowed:
        return None
    if allowed == {"object"} and ("type" in schema or "$ref" in schema):
        return dict(schema) | ({"type": "object"} if "type" in schema else {})
    return {**schema, "type": "object"}
