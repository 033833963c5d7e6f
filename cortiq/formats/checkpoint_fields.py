"""Fields of a model's files that every kind of checkpoint has: texts, end tokens, chat template."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError
from cortiq.formats.strict_json import read_optional, read_text


def text_field(mapping: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return a text, or None; raise FormatError for anything else."""
    value = mapping.get(key)
    if value is None or isinstance(value, str):
        return value
    raise FormatError(f"{key} is not a string", where=where)


def token_ids(values: list[Any], where: str) -> tuple[int, ...]:
    """Flatten ids and lists of ids, None left out, ascending and each once."""
    flat = [i for value in values for i in (value if isinstance(value, list) else [value])]
    found = [value for value in flat if value is not None]
    if any(type(value) is not int or value < 0 for value in found):
        raise FormatError("eos_token_id is neither an id nor a list of ids", where=where)
    return tuple(sorted(set(found)))


def folder_template(folder: Path) -> str | None:
    """Return chat_template.jinja, else the one in tokenizer_config.json; of several, "default"."""
    if os.path.lexists(folder / "chat_template.jinja"):
        return read_text(folder / "chat_template.jinja")
    path = folder / "tokenizer_config.json"
    config = read_optional(path)
    template = config.get("chat_template")
    if not isinstance(template, list):
        return text_field(config, "chat_template", str(path))
    named = [entry for entry in template if isinstance(entry, dict)]
    default = next((entry for entry in named if entry.get("name") == "default"), {})
    return text_field(default, "template", str(path))
