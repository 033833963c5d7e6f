"""Commands of the conformance kit, which is a separate package: `conform` and others."""

from __future__ import annotations

from importlib.util import find_spec

import click

from cortiq.command_names import KIT_PACKAGE
from cortiq.errors import CortiqError


def kit_command(name: str, help_text: str) -> click.Command:
    """Return the kit's command, or one that reports that the kit is not installed."""
    if find_spec(KIT_PACKAGE) is not None and find_spec(f"{KIT_PACKAGE}.cli") is not None:
        from cortiq_conformance.cli import COMMANDS

        return COMMANDS[name]

    @click.command(
        name,
        help=f"{help_text} (Needs the package cortiq-conformance.)",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def missing() -> None:
        from cortiq.plugins.extras import extra_command

        hint = extra_command("conformance")
        raise CortiqError("the conformance kit is not installed", hint=hint)

    return missing
