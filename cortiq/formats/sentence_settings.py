"""Poolings of hidden rows: settings of sentence-transformers beside a model, and of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError, shown
from cortiq.formats.strict_json import parse_object, read_bytes, read_optional

MOST_LEVELS = 8
"""Levels of objects and lists in a list of modules."""
POOLINGS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}  # fmt: skip
"""Keys of a pooling module's config.json that cortiq computes."""
GGUF_POOLING = "pooling_type"
"""Key of GGUF files, without the architecture's prefix."""
GGUF_POOLINGS: Mapping[int, str] = {0: "", 1: "mean", 2: "cls", 3: "last", 4: ""}
"""Poolings by their number there: 0 keeps all rows, 4 is a classifier, which pool nothing."""


def pooling_in_gguf(metadata: Mapping[str, Any], architecture: str, where: str) -> str:
    """Return the pooling that a GGUF file asks for; empty where it asks for none.

    Raises
    ------
    FormatError : its number stands for none.
    """
    key = f"{architecture}.{GGUF_POOLING}"
    number = metadata.get(key, 0)
    if type(number) is not int or number not in GGUF_POOLINGS:
        raise FormatError(f"{key} is {shown(number)}, not {sorted(GGUF_POOLINGS)}", where=where)
    return GGUF_POOLINGS[number]


def pooling_of(folder: Path) -> str:
    """Return the pooling that a model's folder asks for; empty where it says nothing.

    Raises
    ------
    FormatError : it asks for another one, or for several at once.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return ""
    data = b'{"modules": ' + read_bytes(file) + b"}"
    listed = parse_object(data, str(file), MOST_LEVELS)["modules"]
    modules = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
    for module in modules:
        kind, path = (str(module.get(key, "")) for key in ("type", "path"))
        if kind.endswith("Pooling") and path and Path(path).name == path:
            return _pooling(read_optional(folder / path / "config.json"), str(folder / path))
    return ""


def _pooling(config: dict[str, Any], where: str) -> str:
    named = config.get("pooling_mode")
    asked = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    found = [POOLINGS.get(key, "") for key in asked] if named is None else [str(named)]
    found = ["last" if name == "lasttoken" else name for name in found]
    if len(found) != 1 or found[0] not in POOLINGS.values():
        what = f"asks for the pooling {shown(named or asked)}"
        raise FormatError(what, where=where, hint=f"cortiq has {', '.join(POOLINGS.values())}")
    return found[0]
