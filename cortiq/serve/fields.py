"""Request bodies: every field checked for type and range, unknown fields refused.

A field that is null is absent, whatever it is called: clients that serialise every field send them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.errors import FormatError, shown
from cortiq.formats.strict_json import parse_object
from cortiq.option_names import closest_option
from cortiq.serve.errors import ApiError, error_sentence, invalid
from cortiq.serve.ignored import ignores

IGNORED = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "verbosity", "prediction",
})  # fmt: skip
"""Fields that OpenAI has and that change nothing here."""
MAIN_FIELDS = {
    "messages": ("conversations", "/v1/chat/completions"),
    "prompt": ("raw texts", "/v1/completions"),
    "input": ("texts to embed", "/v1/embeddings"),
}
"""The field that says what is asked, what is in it, and its path."""
Number = int | float
MAX_DEPTH = 100
"""Levels of a request's body; what reads it may take a call for each."""


class Fields:
    """The fields of one JSON object; `close` refuses those that were never read.

    Parameters
    ----------
    where : path of the object in the request, empty for the request itself.

    Attributes
    ----------
    values : the fields that are given; nulls are not.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self._where = where
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        """Return a field's path for error messages."""
        return f"{self._where}.{name}" if self._where else name

    def wrong(self, name: str, expected: str) -> ApiError:
        """Return the error of a missing or invalid field."""
        path = self.path(name)
        if name not in self.values:
            return invalid(f"'{path}' is missing: it must be {expected}.", path)
        return invalid(f"'{path}' must be {expected}, not {given(self.values[name])}.", path)

    def get(self, name: str, kinds: type | tuple[type, ...], expected: str) -> Any:
        """Return a field of one of these types, or None if it is missing."""
        self._read.add(name)
        value = self.values.get(name)
        allowed = kinds if isinstance(kinds, tuple) else (kinds,)
        boolean = isinstance(value, bool) and bool not in allowed  # which Python takes for integers
        if value is not None and (boolean or not isinstance(value, kinds)):
            raise self.wrong(name, expected)
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a string field."""
        value = self.get(name, str, "a string")
        return default if value is None else value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean field."""
        value = self.get(name, bool, "a boolean")
        return default if value is None else value

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number within bounds, both included, or None if it is missing."""
        expected = f"a number from {least:g} to {most:g}"
        value = self.get(name, (int, float), expected)
        if value is None:
            return None
        if not least <= value <= most:  # also refuses NaN
            raise self.wrong(name, expected)
        return float(value)

    def integer(self, name: str, least: int, most: int) -> int | None:
        """Return an integer within bounds, both included, or None if it is missing."""
        expected = f"an integer from {least} to {most}"
        value = self.get(name, int, expected)
        if value is not None and not least <= value <= most:
            raise self.wrong(name, expected)
        return value

    def choice(self, name: str, words: tuple[str, ...], default: str) -> str:
        """Return a field that must be one of `words`."""
        value = self.text(name, default)
        if value not in words:
            raise self.wrong(name, "one of " + ", ".join(words))
        return value

    def items(self, name: str) -> list[Any] | None:
        """Return an array field."""
        return self.get(name, list, "an array")

    def object(self, name: str) -> dict[str, Any] | None:
        """Return an object with free keys, such as a JSON schema; nulls in it are kept."""
        return self.get(name, dict, "an object")

    def fields(self, name: str) -> Fields | None:
        """Return the fields of a nested object."""
        value = self.object(name)
        return None if value is None else Fields(value, self.path(name))

    def note_read(self, *names: str) -> None:
        """Count fields as read: another reader checks them, or they change nothing."""
        self._read.update(names)

    def refuse(self, name: str, why: str) -> None:
        """Refuse a field that is not supported."""
        self._read.add(name)
        if name in self.values:
            raise invalid(f"'{self.path(name)}' is not supported: {why}", self.path(name))

    def belongs(self, own: str) -> None:
        """Refuse the main field of another endpoint and name that endpoint: clients mix them up."""
        for name, (what, path) in MAIN_FIELDS.items():
            if name != own and name in self.values:
                message = f"'{name}' is not of this path, which takes '{own}': {what} go to {path}."
                raise invalid(message, name, "unknown_parameter")

    def close(self) -> None:
        """Refuse fields that were never read: a parameter is never ignored silently.

        Where the operator lets them be ignored, they are noted for the response and the log.
        """
        for name in self.values:
            if name not in self._read and name not in IGNORED and not ignores(self.path(name)):
                near = closest_option(name, self._read)
                hint = f" Did you mean '{self.path(near)}'?" if near else ""
                message = f"Unknown parameter: {shown(self.path(name))}.{hint}"
                raise invalid(message, self.path(name), "unknown_parameter")


def given(value: object) -> str:
    """Return a value as error messages show it; None as `null`."""
    return "null" if value is None else shown(value)


def read_body(data: bytes) -> Fields:
    """Parse a request's body."""
    try:
        return Fields(parse_object(data, "the body", MAX_DEPTH))
    except FormatError as error:
        raise invalid(
            f"We could not parse the JSON body of your request: {error_sentence(error)}"
        ) from None


def object_fields(value: object, where: str) -> Fields:
    """Return the fields of a value that must be an object."""
    if not isinstance(value, dict):
        raise invalid(f"'{where}' must be an object, not {given(value)}.", where)
    return Fields(value, where)
