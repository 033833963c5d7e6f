"""What a tool dialect is, and helpers that several of them share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """A call that a model wrote.

    Attributes
    ----------
    name : of the function. arguments : by name, JSON values.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ToolDialect:
    """One way to write tool calls.

    Attributes
    ----------
    name : of the dialect.
    fits : whether a chat template (its Jinja source) asks for this dialect.
    opens, closes : markers around calls. Without `closes` the calls go on to the end of the text,
        and where `at_end` is set the end of the text closes them too (a marker that ends an answer
        is not part of the text).
    parse : the calls in what stands between the markers; ValueError where there are none, and then
        the whole of it is text.
    inner : further markers that calls are written with.
    texts : whether arguments are texts whose types only the tool's schema tells (`typed`).
    wrap : text around a call's JSON object `{"name": …, "arguments": …}` where a call can be forced
        by a grammar; None where the dialect does not write calls as such an object.
    """

    name: str
    fits: Callable[[str], bool]
    opens: str
    closes: str
    parse: Callable[[str], list[ToolCall]]
    at_end: bool = False
    inner: tuple[str, ...] = ()
    texts: bool = False
    wrap: tuple[str, str] | None = None


def from_object(value: object) -> ToolCall:
    """A call from an object with `arguments` or `parameters`; ValueError where it is none."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError("no object with a name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, Mapping):
        raise ValueError("arguments are no object")
    return ToolCall(value["name"], arguments)


def from_json(text: str) -> list[ToolCall]:
    """Calls from one JSON object, or from a list of them; ValueError for anything else."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("an empty list")
    return [from_object(item) for item in values]


def typed(call: ToolCall, schema: Mapping[str, Any]) -> ToolCall:
    """A call whose arguments were texts, with the values that the tool's schema expects.

    What the schema says is a string stays one; anything else is read as JSON where it is JSON.
    """
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    values = {name: _typed(text, known.get(name)) for name, text in call.arguments.items()}
    return ToolCall(call.name, values)


def _typed(text: Any, schema: object) -> Any:
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
