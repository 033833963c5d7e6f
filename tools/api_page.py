"""The site's reference of the Python API, from the docstrings of the public names; on stdout."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import cortiq
from cortiq import errors

HEAD = """# Reference of the Python API

Every public name of `import cortiq`, from its docstring. [The Python API](python-api.md) shows them
at work. What is not on this page may change between any two versions; see the
[version policy](versions.md).
"""
SECTION = re.compile(r"^(\w+)\n-+$", re.MULTILINE)
WIDTH = 88
"""Characters of a call that is written in one line."""
ENTRY = re.compile(r"^(\S[^:]*?) : ", re.MULTILINE)


def argument(parameter: inspect.Parameter) -> str:
    """Return an argument as it is written in the source."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    text = f"{stars.get(parameter.kind, '')}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"


def signature(function: Any, name: str) -> str:
    """Return a call's signature, one argument per line if it is long."""
    found, written, starred = inspect.signature(function), [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            written.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        if parameter.name != "self":
            written.append(argument(parameter))
    line = f"{name}({', '.join(written)}) -> {found.return_annotation}"
    if len(line) <= WIDTH:
        return line
    lines = "".join(f"    {text},\n" for text in written)
    return f"{name}(\n{lines}) -> {found.return_annotation}"


def entries(text: str) -> str:
    """Yield the entries `name : text` of a docstring's section as list items."""
    items: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith(" ") and items:
            items[-1] += " " + line.strip()
        elif line.strip():
            items.append(line.strip())
    return "\n".join("* " + ENTRY.sub(r"`\1`: ", item) for item in items)


def markdown(docstring: str) -> str:
    """Convert a NumPy-style docstring to Markdown."""
    parts = SECTION.split(docstring)
    text = [parts[0].strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        text.append(f"**{title}**\n\n{entries(body)}")
    return "\n\n".join(text)


def members(found: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class itself defines."""
    for name, value in vars(found).items():
        if not name.startswith("_") and isinstance(
            value, FunctionType | property | classmethod | staticmethod
        ):
            yield name, value


def of_class(name: str, found: type) -> str:
    """Yield a class's docstring, then its members."""
    text = [f"## {name}", markdown(inspect.getdoc(found) or "")]
    for member, value in members(found):
        text.append(f"### {name}.{member}")
        if not isinstance(value, property):
            call = signature(getattr(found, member), f"{name}.{member}")
            text.append(f"```text\n{call}\n```")
        text.append(markdown(inspect.getdoc(value) or ""))
    return "\n\n".join(text)


def of_errors() -> str:
    """Yield the exceptions, by their place in the hierarchy."""
    rows = []
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, Exception):
            what = (inspect.getdoc(error) or "").splitlines()[0]
            rows.append(f"| `{name}` | `{error.__base__.__name__}` | {what} |")
    return "\n".join(["## Errors", "", "| error | is a | when |", "|---|---|---|", *rows])


def page() -> str:
    """Return the whole page."""
    text = [HEAD.strip()]
    for name in (n for n in cortiq.__all__ if not n.startswith("_")):
        found = getattr(cortiq, name)
        if isinstance(found, type):
            text.append(of_class(name, found))
        else:
            call = signature(found, f"cortiq.{name}")
            body = markdown(inspect.getdoc(found) or "")
            text.append(f"## {name}\n\n```text\n{call}\n```\n\n{body}")
    return "\n\n".join([*text, of_errors()]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
