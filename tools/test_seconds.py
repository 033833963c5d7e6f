"""Processor seconds of tests, their child processes included, by file.

    python tools/test_seconds.py [--write] [what pytest takes …]

Runs the given tests, or all, in one process and prints the most expensive files and functions.
With `--write` renews `tests/data/seconds.json`: files of a second and more, by which
`tools/quick.py` chooses.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/data/seconds.json"
LEAST = 1.0
SHOWN = 25


def processor_seconds() -> float:
    """Return what this process and the children that it has waited for have used."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


class Seconds:
    """A pytest plugin that measures every test with its fixtures, and every file's collection."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        self.count = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Measure a test."""
        before = processor_seconds()
        result = yield
        self.count += 1
        self.files[item.nodeid.partition("::")[0]] += processor_seconds() - before  # type: ignore
        self.functions[item.nodeid.partition("[")[0]] += processor_seconds() - before  # type: ignore
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        """Measure the import of a test file."""
        before = processor_seconds()
        result = yield
        if isinstance(collector, pytest.Module):
            self.files[collector.nodeid] += processor_seconds() - before  # type: ignore
        return result


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name}")
    options, given = parser.parse_known_args()
    measured = Seconds()
    code = int(pytest.main(["-p", "no:cacheprovider", *given], plugins=[measured]))
    for table in (measured.files, measured.functions):
        print("\n".join(f"{seconds:8.1f} {name}" for name, seconds in table.most_common(SHOWN)))
    print(f"{measured.count} tests, {processor_seconds():.0f} s of processor time in all")
    if options.write and not code:
        known = json.loads(TABLE.read_text("utf-8")) if given else {}
        known |= {name: round(seconds, 1) for name, seconds in measured.files.items()}
        kept = {name: value for name, value in sorted(known.items()) if value >= LEAST}
        TABLE.write_text(json.dumps(kept, indent=0) + "\n", "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
