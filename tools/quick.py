"""Check what the changed files need, in under a minute: `python tools/quick.py [--base REV]`.

Runs the linters on the changed files, then the tests nearest to them: changed test files first,
then those that import a changed module, then those that import an importer of one, and so on. Two
processes share the test files; when the time is up the rest is named, not run. Exit code 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (".", "backends/*", "plugins/*", "conformance", "tests", "tests/pure", "tests/model")
SECONDS = 40.0
"""Time for tests; linting and imports take the rest of a minute."""


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


def nearest_tests(changed: Iterable[Path]) -> list[Path]:
    """Return test files by their distance from the changed files, the nearest first."""
    users = importers(modules())
    wave = [path for path in changed if path.suffix == ".py"]
    seen, tests = set(wave), [path for path in wave if path.name.startswith("test_")]
    while wave:
        wave = sorted({user for path in wave for user in users.get(path, ())} - seen)
        seen.update(wave)
        tests += [path for path in wave if path.name.startswith("test_")]
    return tests


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
    tests = [str(path) for path in nearest_tests(changed)]
    print(f"{len(changed)} changed files, {len(tests)} test files near them", flush=True)
    halves = [half for half in (tests[::2], tests[1::2]) if half]
    command = [sys.executable, __file__, "--run"]
    started = [subprocess.Popen([*command, *half], cwd=ROOT) for half in halves]
    return max(failed, *(process.wait() for process in started), 0)


if __name__ == "__main__":
    sys.exit(main())
