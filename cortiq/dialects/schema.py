"""JSON schemas: the JSON types that a schema allows, and the targets of `$ref`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
"""JSON's types; an integer is of "number" too."""

MOST_STEPS = 10_000
"""Subschemas looked at for one question; a schema that needs more allows anything."""


def json_type(value: object) -> str:
    """Return the narrowest JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    for kind, name in ((int, "integer"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def resolve(root: object, reference: str) -> Any:
    """Return what a reference inside `root` points to; KeyError where that is nothing."""
    if not reference.startswith("#"):
        raise KeyError(reference)
    at: Any = root
    for part in unquote(reference[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and re.fullmatch(r"[0-9]{1,6}", part) and int(part) < len(at):
            at = at[int(part)]
        elif isinstance(at, Mapping):
            at = at[part]
        else:
            raise KeyError(reference)
    return at


class Schema:
    """A schema with the document that its references point into.

    Parameters
    ----------
    value : a mapping, or True and False for anything and nothing. root : the whole document.
    """

    def __init__(self, value: object, root: object = None) -> None:
        self.value, self.root = value, value if root is None else root

    def types(self) -> frozenset[str]:
        """Return the JSON types that the schema allows, as far as types can tell."""
        return _types(self.value, self.root, frozenset(), [MOST_STEPS])

    def literals(self) -> list[Any] | None:
        """Return the values of `enum` or `const` where these are all that the schema allows."""
        found: list[Any] = []
        for branch in self._branches():
            if "const" in branch:
                found.append(branch["const"])
            elif isinstance(branch.get("enum"), list):
                found += branch["enum"]
            else:
                return None
        return found

    def property(self, name: str) -> Schema:
        """Return the schema of a property; one that allows anything where none is known."""
        found = [s for branch in self._branches() for s in _property(branch, name)]
        return Schema({"anyOf": found} if found else True, self.root)

    def names(self) -> frozenset[str]:
        """Return the names of all properties that the schema knows."""
        branches = (branch.get("properties") for branch in self._branches())
        return frozenset(name for held in branches if isinstance(held, Mapping) for name in held)

    def _branches(self) -> list[Mapping[str, Any]]:
        return list(_branches(self.value, self.root, frozenset(), [MOST_STEPS]))


def _property(branch: Mapping[str, Any], name: str) -> Iterator[object]:
    """Yield the schemas that one alternative of an object has for a property."""
    properties, patterns = branch.get("properties"), branch.get("patternProperties")
    if isinstance(properties, Mapping) and name in properties:
        yield properties[name]
    elif isinstance(patterns, Mapping) and patterns:
        yield True  # patterns are not tried: they may run without end
    elif isinstance(branch.get("additionalProperties"), Mapping):
        yield branch["additionalProperties"]


def _branches(
    schema: object, root: object, seen: frozenset[str], steps: list[int]
) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of a schema, through references, unions and intersections."""
    steps[0] -= 1
    if not isinstance(schema, Mapping) or steps[0] < 0:
        return
    inner: list[object] = []
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen = seen | {reference}
        with suppress(KeyError):
            inner.append(resolve(root, reference))
    for word in ("anyOf", "oneOf", "allOf"):
        listed = schema.get(word)
        inner += listed if isinstance(listed, list) else []
    own = {"properties", "required", "enum", "const", "additionalProperties", "patternProperties"}
    if own.intersection(schema) or not inner:
        yield schema
    for item in inner:
        yield from _branches(item, root, seen, steps)


def _types(schema: object, root: object, seen: frozenset[str], steps: list[int]) -> frozenset[str]:
    """See `Schema.types`; a reference that leads back to itself allows anything."""
    steps[0] -= 1
    if schema is False:
        return frozenset()
    if not isinstance(schema, Mapping) or steps[0] < 0:
        return TYPES
    allowed = _declared(schema)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        try:
            target = resolve(root, reference)
        except KeyError:
            target = True
        allowed &= _types(target, root, seen | {reference}, steps)
    if isinstance(listed := schema.get("allOf"), list):
        for item in listed:
            allowed &= _types(item, root, seen, steps)
    for word in ("anyOf", "oneOf"):
        if isinstance(listed := schema.get(word), list) and listed:
            each = (_types(item, root, seen, steps) for item in listed)
            allowed &= frozenset().union(*each)
    return allowed


def _declared(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema's own words allow.

    One that only describes the insides of objects or arrays is read as one of these, though to the
    letter it says nothing about other values.
    """
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else declared
    allowed = TYPES
    if isinstance(names, list):
        allowed = frozenset(name for name in names if isinstance(name, str))
        allowed |= {"integer"} if "number" in allowed else set()
    elif "properties" in schema:
        allowed = frozenset({"object"})
    elif "items" in schema or "prefixItems" in schema:
        allowed = frozenset({"array"})
    if "const" in schema:
        allowed &= _of_values([schema["const"]])
    if isinstance(values := schema.get("enum"), list):
        allowed &= _of_values(values)
    return allowed


def _of_values(values: list[Any]) -> frozenset[str]:
    found = {json_type(value) for value in values}
    return frozenset(found | ({"number"} if "integer" in found else set()))
