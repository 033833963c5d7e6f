"""The plugin contract: every hook a package can implement under the entry point `cortiq.plugins`.

A plugin is a module (or object) with functions of these names, each marked with `hookimpl`::

    from cortiq.hookspecs import hookimpl

    @hookimpl
    def cortiq_backends():
        return [MyBackend()]

Hooks are called when things are built, never per token.
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

PROJECT = "cortiq"
GROUP = "cortiq.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def cortiq_backends() -> Sequence[Backend]:
    """Backends this package brings. Creating one must not import its device libraries."""
    raise NotImplementedError


@hookspec
def cortiq_kernels() -> Sequence[Kernel]:
    """Better kernels for single primitives of existing backends (`cortiq.backend.Kernel`).

    A backend that takes kernels has a method `use_kernel`; the function is called as the backend
    calls its own. `placement` then says `BACKEND/NAME` for the nodes that it computes.
    """
    raise NotImplementedError


@hookspec
def cortiq_families() -> Sequence[ModuleType]:
    """Model families: modules as in `cortiq.models`, with ARCHITECTURES and a `build` function."""
    raise NotImplementedError


@hookspec
def cortiq_drafters() -> Sequence[DrafterKind]:
    """Ways to draft (`cortiq.engine.drafters.kinds.DrafterKind`), named by `--draft NAME`.

    No drafter can change a token: what it proposes is only verified together.
    """
    raise NotImplementedError


@hookspec
def cortiq_tool_dialects() -> Sequence[ToolDialect]:
    """Ways to write tool calls (`cortiq.dialects.dialect.ToolDialect`); they go before ours."""
    raise NotImplementedError


@hookspec
def cortiq_commands() -> Sequence[click.Command]:
    """Commands added to `cortiq`, none of them with the name of one of its own."""
    raise NotImplementedError
