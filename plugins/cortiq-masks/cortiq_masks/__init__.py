"""Task masks as overlays, a command `mask`, and operators that choose neurons by the token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from cortiq.backend import Kernel
    from cortiq.models.overlay_kinds import OverlayKind


@hookimpl
def cortiq_overlays() -> Sequence[OverlayKind]:
    """Return the kind of files that hold a mask."""
    from cortiq_masks.overlay import KIND

    return [KIND]


@hookimpl
def cortiq_kernels() -> Sequence[Kernel]:
    """Return the kernels of `KeepLargest`."""
    from cortiq_masks.kernels import kernels

    return list(kernels())


@hookimpl
def cortiq_commands() -> Sequence[click.Command]:
    """Return the command `mask`."""
    from cortiq_masks.commands import mask

    return [mask]
