"""Broken code that the acceptance list's tests must notice, and what runs them on it.

    python tests/mutants.py [T35 …]        or: make mutants

Each mutant is one edit of one file. The edited text takes the file's place in a process of its own,
by an import hook: no file is touched. The cited test must then fail; without the edit it must pass.
`tests/pure/test_mutants.py` checks in milliseconds that every edit still fits its file.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/acceptance.md"
FAILED, PASSED = 1, 0
"""Exit codes of pytest: any other one says that nothing was tested."""


@dataclass(frozen=True)
class Mutant:
    """An edit that a test must notice.

    Attributes
    ----------
    row : of the acceptance list.
    file : from the repository's root.
    old, new : text that occurs once in it, and what takes its place.
    test : that must fail, as `test_x.py::test_y` in `tests/pure`; parameters may follow.
    """

    row: str
    file: str
    old: str
    new: str
    test: str

    def __str__(self) -> str:
        return f"{self.row}: {self.file}: {self.old!r} -> {self.new!r}"

    def source(self) -> str:
        """Return the edited file; ValueError where the edit fits not exactly once."""
        text = (ROOT / self.file).read_text("utf-8")
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self}: occurs {found} times, should occur once")
        return text.replace(self.old, self.new)

    def install(self) -> None:
        """Have the edited text imported in place of the file; before the file is imported."""
        path, source = str((ROOT / self.file).resolve()), self.source()
        loader = importlib.machinery.SourceFileLoader
        plain = loader.get_code

        def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
            if os.path.realpath(self.path) == path:
                return compile(source, self.path, "exec")
            return plain(self, name)

        loader.get_code = get_code  # type: ignore[method-assign]


def _m(row: str, test: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(row, file, old, new, test)


MUTANTS: tuple[Mutant, ...] = ()


@cache
def cited() -> dict[str, frozenset[str]]:
    """Return the tests of every row of the page that has any: those that are not planned aside."""
    rows: dict[str, frozenset[str]] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if not (line.startswith("| T") and len(cells) >= 4):
            continue
        file, tests = "", set[str]()
        for name, test in re.findall(r"`(?:(test_\w+\.py|…)::)?(test_\w+)`", cells[3]):
            file = name if name.startswith("test_") else file
            tests.add(f"{file}::{test}")
        if tests and not cells[3].startswith("not planned"):
            rows[cells[1]] = frozenset(tests)
    return rows


def run_pytest(tests: Iterable[str], *arguments: str) -> int:
    """Run tests in this process; return pytest's exit code."""
    import pytest
    from hypothesis import Phase, settings

    # A failing example need not be made small here.
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")
    names = [f"{ROOT}/tests/pure/{test}" for test in tests]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", *arguments]
    return int(pytest.main([f"--rootdir={ROOT}", *options, *names]))


def in_process_of_its_own(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this file again with other arguments."""
    command = [sys.executable, "-B", __file__, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def survivors(mutants: Sequence[Mutant]) -> Iterable[str]:
    """Run every mutant; yield what is wrong with those whose test did not fail."""
    for mutant in mutants:
        ran = in_process_of_its_own("--one", str(MUTANTS.index(mutant)))
        print("noticed " if ran.returncode == FAILED else "SURVIVED", mutant, flush=True)
        if ran.returncode != FAILED:
            what = "passed" if ran.returncode == PASSED else f"did not run\n{ran.stdout[-2000:]}"
            yield f"{mutant}\n  {mutant.test} {what}{ran.stderr[-1000:]}"


def main() -> int:
    """Run the mutants of the rows given, or of all; return 1 if any survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain:
        return run_pytest(given.plain)
    if given.one is not None:
        MUTANTS[given.one].install()
        return run_pytest([MUTANTS[given.one].test])
    chosen = [m for m in MUTANTS if not given.rows or set(m.row.split(", ")) & set(given.rows)]
    if not chosen:
        parser.error(f"no mutant is of {' '.join(given.rows)}")
    tests = sorted({mutant.test for mutant in chosen})
    ran = in_process_of_its_own("--plain", *tests)
    if ran.returncode != PASSED:
        print(f"without any edit the tests fail:\n{ran.stdout[-3000:]}{ran.stderr[-1000:]}")
        return 1
    wrong = list(survivors(chosen))
    print(*wrong, f"{len(chosen) - len(wrong)} of {len(chosen)} mutants noticed", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
