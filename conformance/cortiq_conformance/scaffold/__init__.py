"""Write a new backend's package: `cortiq new-backend NAME`."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import cortiq
from cortiq.backend import Versions
from cortiq.errors import RequestError
from cortiq_conformance.operators import OperatorFacts, operators

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
"""Path of each template in the package."""
NO_STUBS = {"imports": "from cortiq.ir import Op", "stubs": "", "kernels": "{}"}
STUB_IMPORTS = """from typing import Any

from cortiq.backend import KernelCall
from cortiq.ir import Op, ops  # noqa: F401"""


def write_backend(name: str, parent: Path, stubs: bool = False) -> list[Path]:
    """Write the package of a backend to `parent`/cortiq-NAME, and return its files.

    Parameters
    ----------
    stubs : write a function for every primitive, ready to be filled.

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
    for path, text in rendered(name, stubs):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def rendered(name: str, stubs: bool = False) -> Iterator[tuple[str, str]]:
    """Yield relative path and text of each file of the package; see `write_backend`."""
    words = name.split("-")
    versions = Versions()
    values = {
        "name": name,
        "package": "cortiq_" + "_".join(words),
        "class": "".join(word.capitalize() for word in words),
        "hookspec": str(versions.hookspec),
        "ir": str(versions.ir),
        "contract": str(versions.contract),
        "pin": pinned(cortiq.__version__),
        **(stub_functions() if stubs else NO_STUBS),
    }
    templates = files(__name__) / "template"
    for source, place in PLACES.items():
        text = templates.joinpath(*source.split("/")).read_text("utf-8")
        yield _filled(place, values), _filled(text, values)


def pinned(version: str) -> str:
    """Return the range of versions that have this one's seam: of one minor version before 1.0."""
    major, minor, *_ = version.split(".")
    if int(major):
        return f">={major}.{minor},<{int(major) + 1}"
    return f">=0.{minor},<0.{int(minor) + 1}"


def stub_functions() -> dict[str, str]:
    """Return a function for every primitive, and the lines that put it into `KERNELS`."""
    facts = operators()
    lines = "".join(f"    # ops.{op.name}: {_function(op.name)},\n" for op in facts)
    return {
        "imports": STUB_IMPORTS,
        "stubs": "".join(_stub(op) for op in facts) + "\n",
        "kernels": f"{{\n{lines}}}",
    }


def _stub(op: OperatorFacts) -> str:
    """Return a function whose docstring lists the operator's inputs, outputs and state."""
    names = list("abcdef")[: len(op.inputs)]
    parameters = "".join(f", {name}: Any" for name in names)
    lines = [f"{name} : {text}" for name, text in zip(names, op.inputs, strict=True)]
    told = {"Fields": op.fields, "Weights": op.weights, "Returns": op.outputs, "State": op.state}
    lines += [f"{what} : {', '.join(parts)}" for what, parts in told.items() if parts]
    facts = "\n    ".join(lines)
    return (
        f"\n\ndef {_function(op.name)}(call: KernelCall{parameters}) -> Any:\n"
        f'    """{op.summary}\n\n    {facts}\n    """\n'
        f"    raise NotImplementedError\n"
    )


def _function(name: str) -> str:
    """Return the name of an operator's kernel: rms_norm for RMSNorm."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return f"{words}_" if hasattr(builtins, words) else words


def _filled(text: str, values: dict[str, str]) -> str:
    """Return the text with every {{key}} replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)
