"""Skills as overlays, their routing, a command `skill`, and rewritings of experts and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from cortiq.backend import Kernel
    from cortiq.models.overlay_kinds import OverlayKind
    from cortiq.models.rewriting import ProgramRewrite


@hookimpl
def cortiq_overlays() -> Sequence[OverlayKind]:
    """Return the kind of files that hold a skill."""
    from cortiq_skills.overlay import KIND

    return [KIND]


@hookimpl
def cortiq_rewrites() -> Sequence[ProgramRewrite]:
    """Return rewritings of routers, experts and heads."""
    from cortiq.models.rewriting import ProgramRewrite
    from cortiq_skills.cluster_head import cluster_head
    from cortiq_skills.growing import grow
    from cortiq_skills.rewriting import resonance

    return [
        ProgramRewrite("resonance", "experts chosen by the subspace a row is near to", resonance),
        ProgramRewrite("grow", "more experts, each within a shell", grow),
        ProgramRewrite("cluster_head", "log-probabilities of clusters and within them",
                       cluster_head),
    ]  # fmt: skip


@hookimpl
def cortiq_kernels() -> Sequence[Kernel]:
    """Return the kernels of `ClusterLogProbs`."""
    from cortiq_skills.clusters import kernels

    return list(kernels())


@hookimpl
def cortiq_commands() -> Sequence[click.Command]:
    """Return the command `skill`."""
    from cortiq_skills.commands import skill

    return [skill]
