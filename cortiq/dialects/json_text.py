"""JSON that models write: read where it stands in a text, and never more than it says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from cortiq.dialects.dialect import CallReader, ToolCall, Tools, Unfinished

FENCE = "```(?:json)?"
NOTHING = re.compile("")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_ENDS = {"{": "}", "[": "]"}
_NAMES = {"tool_name": "name", "tool_call_id": "id"}
"""Other names of a call object's keys."""
_KEYS = frozenset({"id", "type", "index", "name", "arguments", "parameters"})
"""Keys that a call object may have: any other key would be an argument that is lost."""


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number out of range")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key that appears twice")
    return made


_DECODER = json.JSONDecoder(
    strict=False,  # line breaks in a string say what they mean
    parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique,
)  # fmt: skip


def decode(text: str, at: int = 0, closes: str = "") -> tuple[Any, int]:
    """Return the JSON value at a place of a text, and where it ends.

    Parameters
    ----------
    closes : marker that ends a call. Brackets that are still open there are closed.

    Raises
    ------
    Unfinished : the text ends inside the value. ValueError : there is no value.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        end = error.pos
        if closes and text.startswith(closes, end) and error.msg.startswith("Expecting ','"):
            value = _DECODER.decode(text[at:end] + _missing(text, at, end))
        elif error.msg.startswith("Unterminated") or not text[end:].strip():
            raise Unfinished("the text ends inside a value") from None
        else:
            raise
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _SURROGATE.search(text, at, end):
        json.dumps(value, ensure_ascii=False).encode()  # ValueError for half a surrogate pair
    return value, end


def read_json(text: str) -> Any:
    """Return the value of a text that is JSON from end to end; ValueError where it is none."""
    text = text.strip()
    value, end = decode(text)
    if end != len(text):
        raise ValueError("text behind a value")
    return value


def _missing(text: str, at: int, stop: int) -> str:
    """Return the closing brackets that are still missing at `stop`."""
    opened = []
    for token in _TOKEN.finditer(text, at, stop):
        if token[0] in _ENDS:
            opened.append(_ENDS[token[0]])
        elif token[0][0] != '"' and opened:
            opened.pop()
    return "".join(reversed(opened))


def arguments_of(value: object) -> Mapping[str, Any]:
    """Return a call's arguments from a JSON value: an object, its text, or null for none."""
    if isinstance(value, str):
        value = read_json(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("arguments are no object")
    return value


def call_of(value: object) -> ToolCall:
    """Return the call that an object is; ValueError where it is none, or says more than a call."""
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    if isinstance(value, Mapping) and "name" not in value:
        value = {_NAMES.get(key, key): item for key, item in value.items()}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError("no object with a name")
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if len(given) > 1 or not _KEYS.issuperset(value):
        raise ValueError("more than a name and arguments")
    return ToolCall(value["name"], arguments_of(given[0] if given else None))


def calls_of(value: object) -> list[ToolCall]:
    """Return the calls of one object, or of a list of them."""
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("an empty list")
    return [call_of(item) for item in values]


def object_reader(opens: str, closes: str) -> CallReader:
    """Return the reader of a dialect whose calls are JSON objects, or lists of them, after `opens`.

    A block may hold several, separated by commas, semicolons, line breaks or markers, and may be in
    a code fence.
    """
    marks = "|".join(re.escape(mark) for mark in (opens, closes) if mark)
    between = re.compile(rf"(?:[\s,;]|{FENCE}{f'|{marks}' if marks else ''})*")
    closing = re.compile(rf"(?:[\s,;]|{FENCE})*{re.escape(closes)}") if closes else NOTHING

    def read(text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
        calls: list[ToolCall] = []
        at = end = len(opens)
        while text[(at := skip(between, text, at)) :][:1] in ("{", "["):
            value, at = decode(text, at, closes)
            calls += calls_of(value)
            end = at
        return calls, ending(text, end, closing, final)

    return read


def named_reader(
    opens: str, head: re.Pattern[str], tail: re.Pattern[str], closes: str, closing: re.Pattern[str]
) -> CallReader:
    """Return the reader of a dialect that writes a name, then its arguments as a JSON object.

    Parameters
    ----------
    head : up to the object; its groups are ways to find the name. tail : follows it, may be empty.
    closes : marker that ends a call. closing : what may close the block.
    """

    def calls_in(text: str, at: int) -> Iterator[tuple[ToolCall, int]]:
        while found := head.match(text, at):
            at = found.end()
            value = None
            if not (closes and text.startswith(closes, at)):
                value, at = decode(text, at, closes)
            name = next(group for group in found.groups() if group)
            at = skip(tail, text, at)
            yield ToolCall(name, arguments_of(value)), at

    def read(text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
        found = list(calls_in(text, len(opens) if text.startswith(opens) else 0))
        end = found[-1][1] if found else 0
        return [call for call, _ in found], ending(text, end, closing, final)

    return read


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of what matches at a place, or the place."""
    found = pattern.match(text, at)
    return found.end() if found else at


def ending(text: str, at: int, closing: re.Pattern[str], final: bool) -> int:
    """Return the end of a block whose last call ended at a place.

    ValueError where something else follows and the block is closed; at the end of an answer that
    is text.
    """
    while (end := skip(closing, text, at)) > at:
        at = end
    if not final and text[at:].strip():
        raise ValueError("text behind a call")
    return at
