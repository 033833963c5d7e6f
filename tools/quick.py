"""Check what the changed files need, in under a minute: `python tools/quick.py [--base REV]`.

Runs the linters on the changed files, then the tests nearest to them: changed test files first,
then those that import a changed module or are named after it or its folder, then those that import
an importer of one, and so on. A file that is no module (C, WGSL, pages) counts as imported by the
modules that name it or its folder. Among test files of one distance those that take the least
processor time come first (`tests/data/seconds.json`, which `tools/test_seconds.py` measures). Two
processes share as many as fit into the time; the others are named, not run. Exit code 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests", "tests/pure", "tests/model", "tests/devices")
PACKAGES = (".", "backends/*", "plugins/*", "conformance", *TESTS)
SECONDS = 40.0
"""Time for tests; linting and imports take the rest of a minute."""
MEASURED = ROOT / "tests/data/seconds.json"
START_SECONDS = 0.5
"""What a test file costs besides its tests, and what one costs that is not in the table."""


def git(*arguments: str) -> list[str]:
    """Return the lines that a git command prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed_files(base: str) -> list[Path]:
    """Return files that differ from `base`, untracked ones included."""
    names = {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}
    return [ROOT / name for name in sorted(names) if (ROOT / name).is_file()]


def modules() -> dict[str, Path]:
    """Return every module of the checkout by the name it is imported by."""
    found: dict[str, Path] = {}
    for pattern in PACKAGES:
        for folder in sorted(ROOT.glob(pattern)) if pattern != "." else [ROOT]:
            inner = folder.glob("*.py") if "tests" in pattern else folder.glob("c*/**/*.py")
            for path in inner:
                parts = path.relative_to(folder).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found.setdefault(name, path)
    return found


def imports(path: Path) -> Iterator[str]:
    """Yield the names that a file imports, lazily or not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(known: Mapping[str, Path]) -> dict[Path, set[Path]]:
    """Return the files that import each file."""
    found: dict[Path, set[Path]] = {path: set() for path in known.values()}
    for path in set(known.values()):
        for name in imports(path):
            if name in known and known[name] != path:
                found[known[name]].add(path)
    return found


def naming(path: Path, known: Iterable[Path]) -> set[Path]:
    """Return the modules whose text has the name of a file, or of its folder, in quotes.

    Modules of the file's own package, or all tests for files of no package.
    """
    package = next((p for p in path.parents if (p / "pyproject.toml").is_file()), ROOT)
    own = [p for p in known if p.is_relative_to(package if package != ROOT else ROOT / "tests")]
    relative = path.relative_to(ROOT).as_posix()
    names = [f'{path.name}"', f'"{path.stem}"', f'"{path.parent.name}"', f'"{relative}"']
    return {p for p in own if any(name in p.read_text("utf-8") for name in names)}


def named_after(path: Path, known: Iterable[Path]) -> set[Path]:
    """Return the test files named after a file or its folder: they may start it as a process."""
    beginnings = tuple(f"test_{name}" for name in (path.stem, path.parent.name))
    return {test for test in known if test.name.startswith(beginnings)}


def nearest_tests(changed: Iterable[Path]) -> list[tuple[int, Path]]:
    """Return test files with their distance from the changed files, the nearest first."""
    known = modules()
    users, changed = importers(known), list(changed)
    others = [path for path in changed if path.suffix != ".py"]
    wave = {path for path in changed if path.suffix == ".py"}
    wave |= {user for path in others for user in naming(path, set(known.values()))}
    named = {test for path in changed for test in named_after(path, set(known.values()))}
    seen, tests, distance = set(wave), [], 0
    while wave or named:
        tests += [(distance, path) for path in sorted(wave) if path.name.startswith("test_")]
        wave = ({user for path in wave for user in users.get(path, ())} | named) - seen
        named = set()
        seen |= wave
        distance += 1
    return tests


def shared_out(tests: Iterable[tuple[int, Path]]) -> tuple[list[list[str]], list[str]]:
    """Return what each of two processes has time for, in order, and what neither has.

    Files of one distance go in the order of their measured cost, so that most of them are run.
    """
    seconds = json.loads(MEASURED.read_text("utf-8"))

    def cost(path: Path) -> float:
        return START_SECONDS + seconds.get(path.relative_to(ROOT).as_posix(), 0.0)

    loads, shares, left = [0.0, 0.0], [[], []], []  # type: ignore[var-annotated]
    for _, path in sorted(tests, key=lambda test: (test[0], cost(test[1]), test[1])):
        process = loads.index(min(loads))
        if loads[process] >= SECONDS:
            left.append(path.name)
            continue
        loads[process] += cost(path)
        shares[process].append(str(path))
    return shares, left


class StopInTime:
    """A pytest plugin that ends the session when the time is up."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Remember the last test."""
        self.last = nodeid

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Stop before a test that would begin too late."""
        if time.monotonic() > self.end:
            item.session.shouldstop = "the time is up; `make test` runs the rest"


def run_tests(files: list[str]) -> int:
    """Run test files in this process until the time is up; return the exit code, 0 at a timeout."""
    import pytest

    plugin = StopInTime(SECONDS)
    code = int(pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[plugin]))
    stopped = code == pytest.ExitCode.INTERRUPTED and time.monotonic() > plugin.end
    return 0 if stopped or code == pytest.ExitCode.NO_TESTS_COLLECTED else code


def lint(changed: list[Path]) -> int:
    """Run ruff on the changed Python files, and the size budget and the lint of names on all."""
    python = [str(path) for path in changed if path.suffix == ".py"]
    commands = [["-m", "ruff", "check", *python], ["-m", "ruff", "format", "--check", *python]]
    commands = [*(commands if python else []), ["tools/budget.py"], ["tools/lint_names.py"]]
    return max(subprocess.run([sys.executable, *c], cwd=ROOT).returncode for c in commands)


def main() -> int:
    """Lint, then test in two processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="HEAD", help="what the changes are counted from")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        return run_tests(options.run)
    changed = changed_files(options.base)
    failed = lint(changed)
    shares, left = shared_out(nearest_tests(changed))
    print(f"{len(changed)} changed files, {sum(map(len, shares))} test files near them", flush=True)
    command = [sys.executable, __file__, "--run"]
    started = [subprocess.Popen([*command, *share], cwd=ROOT) for share in shares if share]
    if left:
        print(f"left to `make test`: {len(left)} files farther away, {', '.join(left[:8])}, ...")
    return max(failed, *(process.wait() for process in started), 0)


if __name__ == "__main__":
    sys.exit(main())
