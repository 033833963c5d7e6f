"""`cortiq conform`: the harness is a package of its own, and so is its command."""

from __future__ import annotations

from importlib.util import find_spec

import click

from cortiq.errors import CortiqError

HARNESS = "cortiq_conformance"


def _find() -> click.Command:
    """The harness's command, or one that says that there is none."""
    if find_spec(HARNESS) is None or find_spec(f"{HARNESS}.cli") is None:
        return _missing
    from cortiq_conformance.cli import conform as command

    return command


@click.command(
    "conform", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def _missing() -> None:
    """Prove a backend right, to the bit (needs the package cortiq-conformance)."""
    raise CortiqError(
        "the conformance harness is not installed", hint="pip install 'cortiq[conformance]'"
    )


conform = _find()
