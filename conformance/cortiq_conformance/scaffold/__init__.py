"""Write a new backend's package: `cortiq new-backend NAME`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from cortiq.backend import Versions
from cortiq.errors import RequestError

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TAKEN = ("cpu", "reference", "conformance")
PLACES = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "conformance.toml.txt": "conformance.toml",
    "gitignore.txt": ".gitignore",
    "workflow.yml.txt": ".github/workflows/conformance.yml",
    "package/__init__.py.txt": "{{package}}/__init__.py",
    "package/backend.py.txt": "{{package}}/backend.py",
    "package/kernels.py.txt": "{{package}}/kernels.py",
    "tests/test_conformance.py.txt": "tests/test_conformance.py",
    "tests/test_backend.py.txt": "tests/test_backend.py",
}
"""Where each template goes."""


def write_backend(name: str, parent: Path) -> list[Path]:
    """Write the package of a backend to `parent`/cortiq-NAME, and return its files.

    Raises
    ------
    RequestError : the name cannot be one, or is one of our own; or the folder holds something.
    """
    if not NAME.fullmatch(name):
        hint = "lower-case letters, digits and single hyphens, a letter first"
        raise RequestError(f"{name!r} cannot be a backend's name", where="new-backend", hint=hint)
    if name in TAKEN:
        hint = "choose another one"
        raise RequestError(f"{name!r} is a name of cortiq's own", where="new-backend", hint=hint)
    folder = parent / f"cortiq-{name}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "remove it, or choose another folder with --into"
        raise RequestError("is there already", where=str(folder), hint=hint)
    written = []
    for path, text in rendered(name):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def rendered(name: str) -> Iterator[tuple[str, str]]:
    """Yield relative path and text of each file of the package."""
    words = name.split("-")
    versions = Versions()
    values = {
        "name": name,
        "package": "cortiq_" + "_".join(words),
        "class": "".join(word.capitalize() for word in words),
        "hookspec": str(versions.hookspec),
        "ir": str(versions.ir),
        "contract": str(versions.contract),
    }
    templates = files(__name__) / "template"
    for source, place in PLACES.items():
        text = templates.joinpath(*source.split("/")).read_text("utf-8")
        yield _filled(place, values), _filled(text, values)


def _filled(text: str, values: dict[str, str]) -> str:
    """Return the text with every {{key}} replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)
