"""Attention of constant memory: other layers in place of a model's, by `--rewrite`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from cortiq.backend import Kernel
    from cortiq.models.rewriting import ProgramRewrite


@hookimpl
def cortiq_rewrites() -> Sequence[ProgramRewrite]:
    """Return a rewriting for each kind of layer."""
    from cortiq.models.rewriting import ProgramRewrite
    from cortiq_bounded.rewriting import nystrom, sink_window, vmf_phase

    return [
        ProgramRewrite(
            "swa_sink_v1", "attention to trained sinks and a window of rows", sink_window
        ),
        ProgramRewrite("nystrom", "attention whose far rows are seen through landmarks", nystrom),
        ProgramRewrite("vmf_phase", "linear attention on cosines and sines", vmf_phase),
    ]


@hookimpl
def cortiq_kernels() -> Sequence[Kernel]:
    """Return the definitions of this package's primitives, and kernels for other backends."""
    from cortiq_bounded.kernels import kernels

    return list(kernels())


@hookimpl
def cortiq_commands() -> Sequence[click.Command]:
    """Return the command that writes sinks."""
    from cortiq_bounded.command import sinks

    return [sinks]
