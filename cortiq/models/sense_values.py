"""Keys of a folder's config.json for what a model sees or hears with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.errors import FormatError, shown

TEXT, FROM_TEXT = "text_config", "text_width"
"""Object of the text model, and the field that holds its `hidden_size`."""


def sense_values(
    whole: Mapping[str, Any], sense: str, *kept: str, **renamed: str
) -> dict[str, Any]:
    """Return the keys of the object `sense`, and those that it has at the top.

    Parameters
    ----------
    kept : keys of the top. renamed : field, and the key of the top that it has the value of; the
        first of several, with commas between, that is there.
    """
    inner, text = whole.get(sense), whole.get(TEXT, whole)
    if not isinstance(inner, Mapping) or not isinstance(text, Mapping):
        raise FormatError(f"has no {sense}", where="config.json")
    values = {**inner, FROM_TEXT: text.get("hidden_size")}
    values |= {key: whole[key] for key in kept if key in whole}
    for field, keys in renamed.items():
        found = [whole[key] for key in keys.split(",") if whole.get(key) is not None]
        values |= {field: found[0]} if found else {}
    return values


def table_token(text: Mapping[str, Any]) -> int | None:
    """Return the id that rows of Gemma's images and sounds have in the table of per-layer inputs;
    None where there is no such table.
    """
    if not text.get("hidden_size_per_layer_input", 256):
        return None
    token, size = text.get("pad_token_id") or 0, text.get("vocab_size", 262144)
    if type(token) is not int or type(size) is not int or not 0 <= token < size:
        what = f"pad_token_id {shown(token)} is no id of {shown(size)}"
        raise FormatError(what, where="config.json")
    return token
