"""Skills as overlays, their routing, and a command `skill`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from cortiq.models.overlay_kinds import OverlayKind


@hookimpl
def cortiq_overlays() -> Sequence[OverlayKind]:
    """Return the kind of files that hold a skill."""
    from cortiq_skills.overlay import KIND

    return [KIND]


@hookimpl
def cortiq_commands() -> Sequence[click.Command]:
    """Return the command `skill`."""
    from cortiq_skills.commands import skill

    return [skill]
