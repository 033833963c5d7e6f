"""Reports as one static page: backends × levels × models, with the details of every cell."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from cortiq.errors import FormatError
from cortiq_conformance.report import CaseOutcome

Facts = Mapping[str, Any]
"""A report as `Report.as_dict` gives it."""
NEEDED = {"backend", "device", "passed", "kit", "contract", "case_list", "results", "versions"}
ORDER = (
    CaseOutcome.DIFFERENT,
    CaseOutcome.ERROR,
    CaseOutcome.DECLINED,
    CaseOutcome.NOT_RUN,
    CaseOutcome.SAME,
)
"""The worst first: it gives a cell its colour."""
COLOURS = {
    CaseOutcome.SAME: "same",
    CaseOutcome.DIFFERENT: "different",
    CaseOutcome.ERROR: "different",
    CaseOutcome.DECLINED: "declined",
    CaseOutcome.NOT_RUN: "missing",
}


@dataclass(frozen=True)
class Cell:
    """Cases of one backend in one column: a colour, and how many came to which outcome."""

    colour: str
    text: str
    detail: str = ""


def read_reports(paths: Iterable[str | Path]) -> list[Facts]:
    """Read reports of `conform --json`; `FormatError` for any other file."""
    found: list[Facts] = []
    for path in paths:
        try:
            facts = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise FormatError(f"cannot be read: {error}", where=str(path)) from None
        if not isinstance(facts, dict) or not NEEDED.issubset(facts):
            raise FormatError("is no report of cortiq conform --json", where=str(path))
        found.append(facts)
    return found


def write_page(reports: Sequence[Facts], path: str | Path) -> None:
    """Write the page; it needs no other file and no network."""
    Path(path).write_text(page(reports), "utf-8")


def page(reports: Sequence[Facts]) -> str:
    """Return the page's text."""
    template = files("cortiq_conformance") / "page.html"
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    columns = _columns(reports)
    rows = [(facts, [_cell(facts, *column) for column in columns]) for facts in reports]
    return environment.from_string(template.read_text("utf-8")).render(
        rows=rows,
        columns=columns,
        kits=sorted({f"kit {facts['kit']}, contract {facts['contract']}" for facts in reports}),
        failing=[_failing(facts) for facts in reports],
        requirement_rows=[_requirement_rows(facts) for facts in reports],
    )


def _columns(reports: Sequence[Facts]) -> list[tuple[int, str]]:
    """Return levels, and from level 2 on each of their models."""
    found = {(r["level"], r.get("model") or "") for facts in reports for r in facts["results"]}
    return sorted(found)


def _cell(facts: Facts, level: int, model: str) -> Cell:
    """Summarise the outcomes of a level and model."""
    mine = [r for r in facts["results"] if r["level"] == level and (r.get("model") or "") == model]
    if not mine:
        return Cell("missing", "not run")
    counts = Counter(r["outcome"] for r in mine if not r.get("excused"))
    there = [f"{counts[o.value]} {o.value}" for o in ORDER if counts[o.value]]
    expected = sum(bool(r.get("excused")) for r in mine)
    there += [f"{expected} expected to fail"] if expected else []
    colours = [COLOURS[o] for o in ORDER if counts[o.value]] or ["declined"]
    colour = "declined" if expected and colours[0] == "same" else colours[0]
    reasons = [r["reason"] for r in mine if r["outcome"] != CaseOutcome.SAME.value]
    return Cell(colour, ", ".join(there), reasons[0] if reasons else "")


def _failing(facts: Facts) -> list[Facts]:
    """Return the results that are not the same, lowest level first."""
    return [r for r in facts["results"] if r["outcome"] != CaseOutcome.SAME.value]


def _requirement_rows(facts: Facts) -> list[tuple[str, str, Cell]]:
    """Return name, sentence and outcome of each requirement."""
    rows = []
    for row in facts.get("requirements", ()):
        counts = row["counts"]
        worst = next((o for o in ORDER if counts.get(o.value)), CaseOutcome.NOT_RUN)
        text = ", ".join(f"{counts[o.value]} {o.value}" for o in ORDER if counts.get(o.value))
        rows.append((row["name"], row["sentence"], Cell(COLOURS[worst], text, row["declined"])))
    return rows
