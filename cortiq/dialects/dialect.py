"""Tool dialects, and the conversion of text arguments to the types of a tool's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.dialects.schema import Schema, json_type


@dataclass(frozen=True)
class ToolCall:
    """A call that a model wrote.

    Attributes
    ----------
    name : of the function. arguments : by name, JSON values.
    """

    name: str
    arguments: Mapping[str, Any]


class Unfinished(ValueError):
    """A call that continues behind the closing marker that was found: the marker is part of it."""


Tools = Mapping[str, Mapping[str, Any]]
"""JSON schema of each offered tool's arguments, by its name."""

CallReader = Callable[[str, Tools, bool], tuple[list[ToolCall], int]]
"""Reads calls from a text that begins with an opening marker: the calls, and where they end.

The text reaches to a closing marker, or (the flag `final`) to the end of the answer. ValueError
where there is no call: the opening marker is text then. `Unfinished` where the closing marker is
part of the call: it is asked again at the next one.
"""


@dataclass(frozen=True)
class ToolDialect:
    """One way to write tool calls.

    Attributes
    ----------
    name : of the dialect.
    fits : whether a chat template (its Jinja source) asks for this dialect.
    opens, closes : markers around calls. Without `closes` the calls extend to the end of the text,
        and where `at_end` is set the end of the text closes them too (a marker that ends an answer
        is not part of the text).
    parse : the calls between the markers; ValueError if there are none, and then all of it is text.
        `Unfinished` where the closing marker is part of a call.
    inner : further markers that calls are written with.
    texts : whether arguments are texts, typed by the tool's schema only (`coerce_arguments`).
    wrap : text around a call's JSON object `{"name": …, "arguments": …}` where a call can be forced
        by a grammar; None where the dialect does not write calls as such an object.
    read : reads irregular calls too; used instead of `parse` where it is there.
    openings : further markers that calls begin with where models leave `opens` out, each with the
        markers that may end such a call. Only calls of offered tools count behind them. `opens` is
        among them where other markers than `closes` end its calls too.
    bare : beginnings of answers that may be calls without a marker.
    """

    name: str
    fits: Callable[[str], bool]
    opens: str
    closes: str
    parse: Callable[[str], list[ToolCall]] | None = None
    at_end: bool = False
    inner: tuple[str, ...] = ()
    texts: bool = False
    wrap: tuple[str, str] | None = None
    read: CallReader | None = None
    openings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bare: tuple[str, ...] = ()

    def calls(self, text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
        """Read calls from a text that begins with an opening marker; see `CallReader`."""
        made, end = self._read(text, tools, final)
        if not made:
            raise ValueError("no call")
        if not text.startswith(self.opens) and any(call.name not in tools for call in made):
            raise ValueError("no offered tool")
        if self.texts:
            made = [coerce_arguments(call, tools.get(call.name, {})) for call in made]
        return made, end

    def _read(self, text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
        if self.read is not None:
            return self.read(text, tools, final)
        if self.parse is None or (final and not self.at_end):
            raise ValueError("no closing marker")
        end = len(text) if final else len(text) - len(self.closes)
        return self.parse(text[len(self.opens) : end]), len(text)


WORDS = {"true": True, "false": False, "null": None, "none": None}
"""Spellings of JSON's words by models, Python's included."""


def coerce_arguments(call: ToolCall, schema: Mapping[str, Any]) -> ToolCall:
    """Return a call whose arguments were texts, with the values that the tool's schema expects.

    A text stays one unless the schema forbids strings there; then it is read as JSON, and stays a
    text where it is none, or is of a type that the schema forbids too.
    """
    whole = Schema(schema)
    values = {name: _typed(text, whole.property(name)) for name, text in call.arguments.items()}
    return ToolCall(call.name, values)


def _typed(text: Any, schema: Schema) -> Any:
    from cortiq.dialects.json_text import read_json

    types, literals = schema.types(), schema.literals()
    if not isinstance(text, str) or (literals is not None and text in literals):
        return text
    if "string" in types and literals is None:
        return text
    word = text.strip().lower()
    try:
        value = WORDS[word] if word in WORDS else read_json(text)
    except ValueError:
        return text
    kind = json_type(value)
    if literals is not None and (kind, value) not in [(json_type(v), v) for v in literals]:
        return text
    if kind not in types:
        return text
    if isinstance(value, float) and kind == "integer" and "number" not in types:
        return int(value)
    return value
