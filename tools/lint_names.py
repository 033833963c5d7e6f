"""Check names and docstrings: one meaning for each class name, openings that say something.

A class name stands for one thing in the whole tree. `SHARED` lists the exceptions: names that every
module of a kind gives to its own part, each with the packages it may stand in. A docstring never
opens with a question word or "The same": a function's says what it does in the imperative, a
class's and a module's says what it is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PACKAGES = ("cortiq", "backends", "conformance", "plugins", "tools", "benchmarks", "examples")
SKIPPED = {"tests", ".venv", "build", "dist"}
SHARED = {
    "Config": (
        "cortiq/models/",
        "cortiq/vision/",
        "cortiq/hearing/",
    ),  # a family's hyperparameters, named as its config.json has them
    "GGUFConfig": ("cortiq/models/",),  # the same, as GGUF metadata has them
    "Names": ("cortiq/models/",),  # a family's tensor names
    "Keys": ("cortiq/models/",),  # a family's metadata keys
    "Processor": (
        "cortiq/vision/",
        "cortiq/hearing/",
    ),  # how images, sounds become rows
    # The scaling's name is part of fingerprints, the layer's of the catalogue.
    "Linear": ("cortiq/ir/layers/basic.py", "cortiq/numerics/rope_kinds.py"),
}
"""Class names that several modules may define, and the packages that those modules are in."""
PENDING: tuple[str, ...] = ()
"""Packages that are still being renamed: not checked unless they are named on the command line."""
OPENING = re.compile(r"(What|Where|Which|Who|Whose|How|The same)\b")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def sources(root: Path, packages: Sequence[str]) -> Iterator[tuple[str, ast.Module]]:
    """Yield the path and the tree of every module under the checked packages.

    Parameters
    ----------
    packages : prefixes of paths that are checked although they are pending.
    """
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            pending = name.startswith(PENDING) and not name.startswith(tuple(packages))
            if not pending and not SKIPPED.intersection(path.parts):
                yield name, ast.parse(path.read_text())


def class_places(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield a module's classes, nested ones included, each with its place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, f"{name}:{node.lineno}"


def repeated_classes(places: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a problem for each class name that is defined more often than it may be."""
    for name, found in sorted(places.items()):
        rest = [place for place in found if not place.startswith(SHARED.get(name, ("\0",)))]
        if len(found) > 1 and rest:
            others = ", ".join(place for place in found if place != rest[0])
            yield f"{rest[0]}: class {name} is also defined at {others}"


def wrong_openings(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield a problem for each docstring that opens with a word of `OPENING`."""
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, Documented) else None
        if text and (match := OPENING.match(text)):
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield f"{name}:{line}: a docstring opens with {match[1]!r}: {text.splitlines()[0]}"


def check(root: Path, packages: Sequence[str] = ()) -> list[str]:
    """Return every problem, as a line."""
    places, problems = defaultdict(list), []
    for name, tree in sources(root, packages):
        problems += wrong_openings(name, tree)
        for defined, place in class_places(name, tree):
            places[defined].append(place)
    return [*problems, *repeated_classes(places)]


def main() -> int:
    """Print every problem; exit 1 if there is one. Arguments are pending packages to check too."""
    problems = check(Path(__file__).parent.parent, sys.argv[1:])
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
