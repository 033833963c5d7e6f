"""Checks of plugins; each raises an error with a sentence about the plugin."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from cortiq import hookspecs
from cortiq.command_names import COMMANDS, KIT, KIT_PACKAGE, SHARED_WITH_KIT

if TYPE_CHECKING:
    from types import ModuleType

    import click

    from cortiq.backend import Backend, Kernel
    from cortiq.dialects.dialect import ToolDialect
    from cortiq.engine.drafters.kinds import DrafterKind
    from cortiq.models.overlay_kinds import OverlayKind
    from cortiq.models.rewriting import ProgramRewrite

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("cortiq_"))
"""Names of all hooks."""
BACKEND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class BrokenPluginError(Exception):
    """A plugin is invalid; the message says why."""


def error_line(error: BaseException) -> str:
    """Return an error's type and message on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def problem_sentence(error: BaseException) -> str:
    """Return the sentence of a `PluginProblem` for an error met while loading."""
    if isinstance(error, BrokenPluginError):
        return str(error)
    if isinstance(error, pluggy.PluginValidationError):
        return f"a hook has the wrong signature: {' '.join(str(error).split())}"
    return error_line(error)


def check_marked(plugin: object) -> None:
    """Refuse functions named like a hook but not marked: pluggy would ignore them silently."""
    marker = f"{hookspecs.PROJECT}_impl"
    for name in HOOKS:
        function = inspect.getattr_static(plugin, name, None)
        function = getattr(function, "__func__", function)
        if inspect.isroutine(function) and not hasattr(function, marker):
            raise BrokenPluginError(f"{name} is not marked with @hookimpl, so nothing calls it")


def check_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    """Refuse a plugin with a hook that cortiq doesn't have (a misspelt one), or with no hook."""
    callers = manager.get_hookcallers(plugin) or []
    if not callers:
        raise BrokenPluginError(f"implements no hook; there are {', '.join(HOOKS)}")
    try:
        manager.check_pending()
    except pluggy.PluginValidationError:
        unknown = [caller.name for caller in callers if not caller.has_spec()]
        near = difflib.get_close_matches(unknown[0], HOOKS, n=1)
        advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(HOOKS)}"
        raise BrokenPluginError(f"cortiq has no hook {unknown[0]!r}; {advice}") from None


def flatten(hook: str, results: Sequence[Any]) -> list[Any]:
    """Return all objects that a plugin's implementations of a hook returned."""
    if not results:
        raise BrokenPluginError(f"{hook} returned None; it returns a list")
    for result in results:
        if isinstance(result, str | bytes) or not isinstance(result, Iterable):
            raise BrokenPluginError(f"{hook} returned {_type_of(result)}; it returns a list")
    return [item for result in results for item in result]


def _type_of(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def check_backends(found: Sequence[Any]) -> list[Backend]:
    """Refuse objects that are no backends, are badly named, or are built for another version."""
    for backend in found:
        check_backend(backend)
    names = [backend.name for backend in found]
    for name in names:
        if names.count(name) > 1:
            raise BrokenPluginError(f"brings the backend {name!r} twice")
    return list(found)


def check_backend(backend: Any) -> None:
    """Refuse an object that is not a backend of this version."""
    _check_is_backend(backend)
    _check_versions(backend)


def _check_is_backend(backend: Any) -> None:
    from cortiq.backend import Backend  # numpy, which `cortiq --help` must not need

    if isinstance(backend, type):
        raise BrokenPluginError(f"{backend.__name__} is a class; a backend is an object of it")
    members = [n for n in (*Backend.__annotations__, *vars(Backend)) if not n.startswith("_")]
    missing = [n for n in members if not hasattr(backend, n)]
    if missing:
        raise BrokenPluginError(f"{_type_of(backend)} is no backend: it lacks {', '.join(missing)}")
    if not isinstance(backend.name, str) or not BACKEND_NAME.fullmatch(backend.name):
        raise BrokenPluginError(f"{backend.name!r} cannot be the name of a backend")
    if not isinstance(backend.priority, int):
        raise BrokenPluginError(f"the priority of {backend.name!r} is not an integer")


def _check_versions(backend: Backend) -> None:
    from cortiq.backend import Versions

    ours = Versions()
    for what in ("hookspec", "ir", "contract"):
        theirs, mine = getattr(backend.versions, what, None), getattr(ours, what)
        if theirs != mine:
            raise BrokenPluginError(
                f"the backend {backend.name!r} was built for {what} version {theirs};"
                f" this cortiq has {mine}"
            )


def check_kernels(found: Sequence[Any]) -> list[Kernel]:
    """Refuse objects that are no `Kernel` of a primitive, or are badly named."""
    if not found:
        return []
    from cortiq.backend import Kernel
    from cortiq.ir import Op

    for kernel in found:
        if not isinstance(kernel, Kernel):
            raise BrokenPluginError(f"{_type_of(kernel)} is no cortiq.backend.Kernel")
        if not isinstance(kernel.name, str) or not BACKEND_NAME.fullmatch(kernel.name):
            raise BrokenPluginError(f"{kernel.name!r} cannot be the name of a kernel")
        if not (isinstance(kernel.op, type) and issubclass(kernel.op, Op) and kernel.op.primitive):
            raise BrokenPluginError(f"the kernel {kernel.name!r} is for no primitive")
    return list(found)


def check_families(found: Sequence[Any]) -> list[ModuleType]:
    """Refuse families without ARCHITECTURES or `build`."""
    for family in found:
        name = getattr(family, "__name__", _type_of(family))
        if not getattr(family, "ARCHITECTURES", None):
            raise BrokenPluginError(f"the family {name} names no ARCHITECTURES")
        if not callable(getattr(family, "build", None)):
            raise BrokenPluginError(f"the family {name} has no function `build`")
    return list(found)


def check_drafters(found: Sequence[Any]) -> list[DrafterKind]:
    """Refuse objects that are no `DrafterKind`, are badly named, or take a built-in name."""
    if not found:
        return []
    from cortiq.engine.drafters.kinds import OWN, RESERVED, DrafterKind  # numpy, as above

    for kind in found:
        if not isinstance(kind, DrafterKind):
            raise BrokenPluginError(f"cortiq_drafters returned {_type_of(kind)}, not DrafterKinds")
        if not isinstance(kind.name, str) or not BACKEND_NAME.fullmatch(kind.name):
            raise BrokenPluginError(f"{kind.name!r} cannot be the name of a drafter")
        if kind.name in OWN or kind.name in RESERVED:
            raise BrokenPluginError(f"brings the drafter {kind.name!r}, which cortiq has itself")
    return list(found)


def check_rewrites(found: Sequence[Any]) -> list[ProgramRewrite]:
    """Refuse objects that are no `ProgramRewrite`, or are badly named."""
    if not found:
        return []
    from cortiq.models.rewriting import ProgramRewrite  # numpy, as above

    for kind in found:
        if not isinstance(kind, ProgramRewrite):
            raise BrokenPluginError(f"cortiq_rewrites returned {_type_of(kind)}, not rewritings")
        if not isinstance(kind.name, str) or not BACKEND_NAME.fullmatch(kind.name):
            raise BrokenPluginError(f"{kind.name!r} cannot be the name of a rewriting")
    return list(found)


def check_tool_dialects(found: Sequence[Any]) -> list[ToolDialect]:
    """Refuse objects that are no `ToolDialect`, or have no markers."""
    from cortiq.dialects.dialect import ToolDialect

    for dialect in found:
        if not isinstance(dialect, ToolDialect):
            raise BrokenPluginError(
                f"cortiq_tool_dialects returned {_type_of(dialect)}, not dialects"
            )
        if not dialect.opens or not (dialect.closes or dialect.at_end):
            raise BrokenPluginError(f"the tool dialect {dialect.name!r} never opens or closes")
    return list(found)


def check_overlays(found: Sequence[Any]) -> list[OverlayKind]:
    """Refuse objects that are no `OverlayKind`."""
    if not found:
        return []
    from cortiq.models.overlay_kinds import OverlayKind  # numpy, as above

    for kind in found:
        if not isinstance(kind, OverlayKind):
            raise BrokenPluginError(f"cortiq_overlays returned {_type_of(kind)}, not OverlayKinds")
    return list(found)


def check_commands(found: Sequence[Any]) -> list[click.Command]:
    """Refuse objects that are no named click commands, or take a built-in name."""
    if not found:
        return []
    import click

    for command in found:
        if not isinstance(command, click.Command) or not command.name:
            raise BrokenPluginError(f"{_type_of(command)} is not a click command with a name")
        if command.name in COMMANDS and not _is_kit_command(command):
            raise BrokenPluginError(f"brings the command {command.name!r}, which cortiq has itself")
    return list(found)


def _is_kit_command(command: click.Command) -> bool:
    """Return whether a command is the conformance kit's own."""
    home = getattr(command.callback, "__module__", "").partition(".")[0]
    return command.name in (*KIT, *SHARED_WITH_KIT) and home == KIT_PACKAGE
