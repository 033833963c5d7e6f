"""Golden digests of cases, so that a device is checked without computing the reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq_conformance.case import Case, Check

FOLDER = Path(__file__).with_name("golden")


def path_of(level: int) -> Path:
    """Return the file of a level."""
    return FOLDER / f"level{level}.json"


@cache
def read(level: int) -> Mapping[str, Any]:
    """Read `contract` and `cases`, by id; empty if there is no file."""
    path = path_of(level)
    if not path.is_file():
        return {"contract": CONTRACT_VERSION, "cases": {}}
    try:
        found = json.loads(path.read_text())
        return {"contract": int(found["contract"]), "cases": dict(found["cases"])}
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"is no file of golden digests: {error}", where=str(path)) from None


def entry(case: Case, check: Check) -> Mapping[str, Any] | None:
    """Return a case's entry under this contract version and model file, if there is one.

    It has a `digest`, and for models their hash (`model`), the layouts of their weights (`format`),
    and `tokens` of streams.
    """
    found = read(case.level)
    known = found["cases"].get(case.id) if found["contract"] == CONTRACT_VERSION else None
    facts = getattr(check, "facts", {})
    same = known is None or all(known.get(name) == value for name, value in facts.items())
    return known if same else None


def write(level: int, entries: Mapping[str, Any]) -> None:
    """Write a level's file."""
    lines = ",\n".join(
        f"  {json.dumps(case_id)}: {json.dumps(entries[case_id], sort_keys=True)}"
        for case_id in sorted(entries)
    )
    FOLDER.mkdir(exist_ok=True)
    text = f'{{"contract": {CONTRACT_VERSION}, "cases": {{\n{lines}\n}}}}\n'
    path_of(level).write_text(text)
    read.cache_clear()
