"""The floors of the house: which package may import which. `--write` puts them into the docs.

A package of `cortiq` imports only packages of lower floors; backends, plugins and the conformance
kit stand outside and import what `OUTSIDE` lists. Imports inside functions and under TYPE_CHECKING
count like all others. `tests/pure/test_layering.py` checks this list against the tree.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- floors: tools/layers.py -->\n", "<!-- end of the floors -->\n"

FLOORS: tuple[tuple[str, Mapping[str, str]], ...] = (
    (
        "words",
        {
            "errors": "exceptions, each with a hint and an exit status",
            "atomic": "files renamed into place once they are complete",
            "command_names": "names of the commands, known without importing them",
            "option_names": "spellings of options",
        },
    ),
    (
        "checks",
        {
            "arguments": "types of arguments that callers pass",
            "domains": "which values a field may take",
            "option_values": "parsing and checking of an option's value",
        },
    ),
    (
        "contract",
        {
            "numerics": "the contract, executable: every operation's bits in NumPy",
            "formats": "checkpoints and downloads, read as hostile",
        },
    ),
    (
        "data",
        {
            "ir": "typed graphs of operators, and their verifier",
            "tokenizer": "text to ids and back, chat templates",
            "dialects": "tool calls and thinking in a model's text",
        },
    ),
    (
        "seam",
        {
            "backend": "what a backend implements: protocol, batch, outcomes, `KernelBackend`",
            "models": "families: a config and tensors become a graph",
        },
    ),
    ("options", {"options": "options of loading, generating, scoring, embedding"}),
    (
        "engine",
        {"engine": "scheduler, sequences, state manager, prefix cache, drafters and policies"},
    ),
    ("hooks", {"hookspecs": "the plugin contract"}),
    ("plugins", {"plugins": "finding, checking and calling packages"}),
    ("placement", {"placement": "which backend computes which node; chains of executables"}),
    (
        "model",
        {
            "model": "what a user holds: load, generate, stream, chat, score, embed",
            "receipts": "record, sign, replay, verify",
        },
    ),
    ("api", {"cortiq": "the public names"}),
    (
        "programs",
        {
            "bench": "speed of a model and of drafting, beside llama.cpp",
            "serve": "HTTP APIs over one worker thread",
            "lm_eval": "EleutherAI's evaluation harness",
        },
    ),
    ("shell", {"cli": "a file for each command"}),
    ("entry", {"__main__": "`python -m cortiq`"}),
)
"""Floors from the ground up: a name, and the packages on it with a sentence each."""

_BACKEND = frozenset({"backend", "errors", "hookspecs", "ir", "numerics"})
OUTSIDE: Mapping[str, frozenset[str]] = {
    "cortiq_reference": _BACKEND,
    "cortiq_cpu": _BACKEND,
    "cortiq_triton": _BACKEND,
    "cortiq_wgpu": _BACKEND,
    "cortiq_mlx": _BACKEND,
    "cortiq_torch": _BACKEND,
    "cortiq_null": _BACKEND | {"cortiq_reference"},
    "cortiq_faulty": _BACKEND | {"cortiq_reference", "cortiq_conformance"},
    "cortiq_conformance": _BACKEND
    | {"engine", "formats", "model", "models", "options", "plugins", "tokenizer"}
    | {"cortiq_reference"},
}
"""Packages outside `cortiq`, and all that each of them may import."""


class Exemption(NamedTuple):
    """An import that goes up or sideways, and why it may."""

    importer: str
    imported: str
    reason: str


EXEMPTIONS = (
    Exemption(
        "model",
        "receipts",
        "`Generation.receipt` and `Model.verify` are methods for the user's sake; nothing else of "
        "`model` knows receipts",
    ),
    Exemption(
        "receipts",
        "model",
        "a receipt is replayed on a loaded model: the other half of the same pair",
    ),
    Exemption(
        "cli",
        "cortiq_conformance",
        "`cortiq conform` is the kit's own command; without the kit it says how to install it",
    ),
)
"""Imports that the floors do not allow."""


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
    problems = breaches(list(imports(ROOT)))
    if PAGE.read_text("utf-8") != page(text):
        problems.append("docs/architecture.md is not current: python tools/layers.py --write")
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
