"""Check the imports of every package against the list in `layers.py`; `--write` renews the docs.

Imports inside functions and under TYPE_CHECKING count like all others.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from layers import CYCLES, EXEMPTIONS, FLOORS, OUTSIDE

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- floors: tools/layers.py -->\n", "<!-- end of the floors -->\n"


class Import(NamedTuple):
    """One import statement: the file with its line, and the packages at both ends."""

    where: str
    importer: str
    imported: str


def package_of(module: str) -> str:
    """Return the package, or the single file beside the packages, that a module is in."""
    first, _, rest = module.partition(".")
    return rest.split(".")[0] if first == "cortiq" and rest else first


def modules(root: Path) -> dict[str, Path]:
    """Return the files of every package by the names they are imported by."""
    found = {}
    for pattern in (".", "backends/*", "plugins/*", "conformance"):
        for folder in [root] if pattern == "." else sorted(root.glob(pattern)):
            for path in sorted(folder.glob("cortiq*/**/*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_modules(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every module of ours that a file imports, lazily or not."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level or not node.module:
                raise ValueError(f"line {node.lineno}: relative import; write the whole name")
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in inner]
        yield from ((node.lineno, n) for n in names if n.split(".")[0].startswith("cortiq"))


def imports(root: Path) -> Iterator[Import]:
    """Yield every import of one package by another."""
    known = modules(root)
    for name, path in known.items():
        for line, imported in imported_modules(ast.parse(path.read_text("utf-8")), known):
            ends = package_of(name), package_of(imported)
            if ends[0] != ends[1]:
                yield Import(f"{path.relative_to(root)}:{line}", *ends)


def module_cycles(root: Path) -> list[list[str]]:
    """Return the groups of modules that import one another, directly or through others."""
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        found = (m for _, m in imported_modules(ast.parse(path.read_text("utf-8")), known))
        graph[name] = {m for m in found if m in known and m != name}
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted(m for m in reached[name] if name in reached[m]))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def unlisted_cycles(groups: list[list[str]]) -> list[str]:
    """Return a line for each cycle that is not listed, and each entry of the list without use."""
    problems, used = [], set()
    for group in groups:
        entry = next((c for c in CYCLES if all(_matches(m, c.modules) for m in group)), None)
        used.add(entry)
        if entry is None:
            problems.append(f"modules import one another: {', '.join(group)}")
    unused = [f"cycle without use: {', '.join(c.modules)}" for c in CYCLES if c not in used]
    return problems + unused


def _matches(module: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(module, pattern) for pattern in patterns)


def breaches(found: list[Import]) -> list[str]:
    """Return a line for each import that the list does not allow, and each entry without use."""
    floor = {name: i for i, (_, packages) in enumerate(FLOORS) for name in packages}
    exempt = {(e.importer, e.imported): False for e in EXEMPTIONS}
    problems = []
    for where, importer, imported in found:
        if importer not in floor and importer not in OUTSIDE:
            problems.append(f"{where}: {importer} is not on the list of tools/layers.py")
        elif (importer, imported) in exempt:
            exempt[importer, imported] = True
        elif importer in OUTSIDE:
            if imported not in OUTSIDE[importer]:
                problems.append(f"{where}: {importer} may not import {imported}")
        elif floor.get(imported, len(FLOORS)) >= floor[importer]:
            problems.append(
                f"{where}: {importer} imports {imported}, which is not on a lower floor"
            )
    unused = [
        f"exemption without use: {a} imports {b}" for (a, b), used in exempt.items() if not used
    ]
    return problems + unused


def table() -> str:
    """Return the floors as a table, the top one first."""
    rows = ["| floor | packages |", "|---|---|"]
    for name, packages in reversed(FLOORS):
        cells = "<br>".join(f"`{package}`: {says}" for package, says in packages.items())
        rows.append(f"| {name} | {cells} |")
    rows += ["", "Imports that go another way, and why:", ""]
    rows += [f"* `{e.importer}` → `{e.imported}`: {e.reason}." for e in EXEMPTIONS]
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """Return the page with the table of today."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def main() -> int:
    """Print every breach; with `--write`, renew the page's table first."""
    text = PAGE.read_text("utf-8")
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(text), "utf-8")
    problems = breaches(list(imports(ROOT))) + unlisted_cycles(module_cycles(ROOT))
    if PAGE.read_text("utf-8") != page(text):
        problems.append("docs/architecture.md is not current: python tools/check_layers.py --write")
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
