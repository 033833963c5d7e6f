"""A report's JSON file, kept up to date while the cases run, so that no end loses it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cortiq_conformance.report import Report

UNFINISHED = "the process that ran the cases ended"
"""Why a report was cut short whose run never said that it was over."""


class JsonFile:
    """Writes the report before each case and at the end; each result is formatted once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._texts: dict[str, str] = {}

    def update(self, report: Report, *, over: bool) -> None:
        """Write the report as it stands; an unfinished one is marked as cut short.

        A pipe or a device is written to once, when all is over.
        """
        special = self.path.exists() and not self.path.is_file()
        if special and not over:
            return
        facts = report.facts()
        if not over:
            facts |= {"cut_short": UNFINISHED, "passed": False}
            facts["failures"] = [f"cut short: {UNFINISHED}", *facts["failures"]]
        text = self._text(facts, report)
        if special:
            self.path.write_text(text, "utf-8")
            return
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            part.write_text(text, "utf-8")
            os.replace(part, self.path.resolve())
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _text(self, facts: dict, report: Report) -> str:
        for result in report.results:
            if result.case.id not in self._texts:
                made = json.dumps(result.as_dict(), ensure_ascii=False)
                self._texts[result.case.id] = made
        results = ",\n  ".join(self._texts[result.case.id] for result in report.results)
        indent = None if facts["cut_short"] == UNFINISHED else 1  # without, it is written faster
        head = json.dumps(facts, indent=indent, ensure_ascii=False).removesuffix("}").rstrip()
        return f'{head},\n "results": [\n  {results}\n ]\n}}\n'
