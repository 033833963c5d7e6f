"""The conformance harness: check a backend to the operator and the bit.

>>> from cortiq_conformance import run
>>> report = run("reference", levels=(0,))
>>> report.passed
True

In a backend's own tests: ``test_conformance = conformance("acme")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

    from cortiq_conformance.catalogue import cases
    from cortiq_conformance.pytest_plugin import conformance
    from cortiq_conformance.runner import run

__all__ = ["KIT_VERSION", "cases", "conformance", "run"]

KIT_VERSION = "0.1.0"
"""Version of the kit, in every report."""

_HOMES = {"cases": "catalogue", "conformance": "pytest_plugin", "run": "runner"}


@hookimpl
def cortiq_commands() -> Sequence[click.Command]:
    """Register `conform` and the other commands of the kit."""
    from cortiq_conformance.cli import COMMANDS

    return list(COMMANDS.values())


def __getattr__(name: str) -> Any:
    """Import what is asked for, and numpy with it, when it is first needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
