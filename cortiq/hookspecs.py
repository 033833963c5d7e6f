"""The plugin contract: all hooks that a package can implement.

A plugin is a module (or object), named by an entry point in `cortiq.plugins`, with functions of
these names, each marked with `hookimpl`::

    from cortiq.hookspecs import hookimpl

    @hookimpl
    def cortiq_backends():
        return [MyBackend()]

Hooks are called at set-up, never per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import click

    from cortiq.backend import Backend, Kernel
    from cortiq.dialects.dialect import ToolDialect
    from cortiq.engine.drafters.kinds import DrafterKind
    from cortiq.models.overlay_kinds import OverlayKind
    from cortiq.models.rewriting import ProgramRewrite

PROJECT = "cortiq"
GROUP = "cortiq.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def cortiq_backends() -> Sequence[Backend]:
    """Return backends. Creating one must not import its device libraries."""
    raise NotImplementedError


@hookspec
def cortiq_kernels() -> Sequence[Kernel]:
    """Return kernels for primitives, perhaps of the package's own, on existing backends.

    A backend that takes kernels (`cortiq.backend.Kernel`) has a method `use_kernel`; the function
    is in its own form. `placement` then says `BACKEND/NAME` for the nodes that it computes.
    """
    raise NotImplementedError


@hookspec
def cortiq_families() -> Sequence[ModuleType]:
    """Return model families: modules as in `cortiq.models`, with ARCHITECTURES and `build`."""
    raise NotImplementedError


@hookspec
def cortiq_drafters() -> Sequence[DrafterKind]:
    """Return drafters (`cortiq.engine.drafters.kinds.DrafterKind`) for `--draft NAME`.

    No drafter can change a token: its proposals are only verified.
    """
    raise NotImplementedError


@hookspec
def cortiq_rewrites() -> Sequence[ProgramRewrite]:
    """Return rewritings of programs (`cortiq.models.rewriting`) for `--rewrite NAME:ARGUMENT`.

    A model that nobody asks to be rewritten keeps every bit, and its fingerprint.
    """
    raise NotImplementedError


@hookspec
def cortiq_tool_dialects() -> Sequence[ToolDialect]:
    """Return tool call dialects (`cortiq.dialects.dialect.ToolDialect`); they precede ours."""
    raise NotImplementedError


@hookspec
def cortiq_overlays() -> Sequence[OverlayKind]:
    """Return kinds of files (`cortiq.models.overlay_kinds.OverlayKind`) for `--adapter NAME=PATH`.

    What such a file does to a model's weights is an overlay, which requests choose by its name.
    """
    raise NotImplementedError


@hookspec
def cortiq_commands() -> Sequence[click.Command]:
    """Return commands for `cortiq`; none may have a built-in command's name."""
    raise NotImplementedError
