"""Extras of the distribution: optional packages, and which of them are missing."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

CORE = "cortiq"
_REQUIREMENT = re.compile(
    r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>[^;]*)(?:;(?P<when>.*))?"
)
_EXTRA = re.compile(r"extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]")


@dataclass(frozen=True)
class Extra:
    """An extra: packages that `pip install 'cortiq[…]'` installs.

    Attributes
    ----------
    packages : version of each, None where it is not installed.
    """

    name: str
    packages: dict[str, str | None]

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [package for package, version in self.packages.items() if version is None]

    @property
    def command(self) -> str:
        """The command that installs it, from the checkout that cortiq is run from, if any."""
        if any(checkout_folder(package) for package in self.missing):
            return install_command(*self.missing)
        root = checkout_root()
        place = CORE if root is None else _near(root)
        return f"pip install {'' if root is None else '-e '}'{place}[{self.name}]'"


def extra_command(name: str) -> str:
    """Return the command that installs an extra, for the hint of an error."""
    return next(
        (extra.command for extra in extras() if extra.name == name), Extra(name, {}).command
    )


def install_command(*packages: str) -> str:
    """Return the pip command that installs packages, from the checkout's folders if present."""
    parts = [f"-e {checkout_folder(p)}" if checkout_folder(p) else p for p in packages]
    return f"pip install {' '.join(parts)}"


def checkout_folder(package: str) -> str | None:
    """Return the folder of a cortiq package in the current checkout, or None.

    The path is relative if it is below the working folder.
    """
    root = checkout_root()
    if root is None or not package.startswith(CORE):
        return None
    for file in (*root.glob("*/pyproject.toml"), *root.glob("*/*/pyproject.toml")):
        if tomllib.loads(file.read_text("utf-8")).get("project", {}).get("name") == package:
            return _near(file.parent)
    return None


def checkout_root() -> Path | None:
    """Return the folder of the checkout that cortiq is run from, or None."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def _near(folder: Path) -> str:
    """Return a folder's path, relative if it is the working folder or below it."""
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


def extras() -> list[Extra]:
    """Return the extras that this installation of cortiq declares."""
    found: dict[str, dict[str, str | None]] = {}
    for package, extra in _requirements(CORE):
        if extra is not None:
            found.setdefault(extra, {})[package] = _version(package)
    return [Extra(name, packages) for name, packages in sorted(found.items())]


def missing_requirements(distribution: str) -> list[str]:
    """Return required packages of an installed distribution that are missing."""
    needed = [package for package, extra in _requirements(distribution) if extra is None]
    return [package for package in needed if _version(package) is None]


def _requirements(distribution: str) -> list[tuple[str, str | None]]:
    """Return package and extra of every requirement, except those of other platforms."""
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        parts = _REQUIREMENT.match(line)
        extra = _EXTRA.search((parts and parts["when"]) or "")
        if parts and (extra or not parts["when"]):
            found.append((parts["package"], extra["extra"] if extra else None))
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
