"""Loading of plugins: packages with an entry point in `cortiq.plugins`, each in its own `try`.

A broken plugin becomes a `PluginProblem`, whose sentence `cortiq backends` shows, and is removed
completely; it breaks nothing else. Nothing here imports a plugin or numpy until `load_plugins` is
called.

* `CORTIQ_PLUGINS` selects the installed plugins to load: a comma-separated list of names; none if
  it is empty, all if it isn't set.
* A file can be a plugin, too (`--plugin FILE.py`): it needs no packaging and is always loaded.
* Two plugins that bring a backend of one name: it belongs to the plugin whose entry point has that
  name, else to the first in alphabetical order; the other plugin is a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from cortiq import hookspecs
from cortiq.errors import BackendError
from cortiq.plugins import checks
from cortiq.plugins.candidates import (
    ONLY_VARIABLE,
    Candidate,
    from_entry_point,
    from_file,
    installed_entry_points,
    only_from_environment,
)
from cortiq.plugins.checks import BrokenPluginError, error_line
from cortiq.plugins.kernels import register_kernels

if TYPE_CHECKING:
    from types import ModuleType

    import click

    from cortiq.backend import Backend, Kernel
    from cortiq.dialects.dialect import ToolDialect
    from cortiq.engine.drafters.kinds import DrafterKind
    from cortiq.models.overlay_kinds import OverlayKind
    from cortiq.models.rewriting import ProgramRewrite


@dataclass(frozen=True)
class PluginProblem:
    """A plugin that was not loaded, with the reason.

    Attributes
    ----------
    name : of the entry point, or the file.
    sentence : the reason.
    requested : whether the user named the file; commands that need a backend then refuse to run.
    """

    name: str
    sentence: str
    requested: bool = False


@dataclass(frozen=True)
class Plugins:
    """Everything that the loaded plugins bring.

    Attributes
    ----------
    backends : by name, the highest priority first.
    families : model family modules, in the order of their plugins' names.
    commands : commands for `cortiq`, by name.
    drafters : drafter kinds, in the order of their plugins' names.
    tool_dialects : tool call dialects, in the order of their plugins' names.
    overlays : kinds of files that become overlays, in the order of their plugins' names.
    rewrites : rewritings of programs, in the order of their plugins' names.
    problems : plugins that were not loaded.
    sources : each plugin's distribution and version, or file, by plugin name.
    brought_by : each backend's plugin, by backend name.
    """

    backends: Mapping[str, Backend] = field(default_factory=dict)
    families: Sequence[ModuleType] = ()
    commands: Mapping[str, click.Command] = field(default_factory=dict)
    drafters: Sequence[DrafterKind] = ()
    tool_dialects: Sequence[ToolDialect] = ()
    overlays: Sequence[OverlayKind] = ()
    rewrites: Sequence[ProgramRewrite] = ()
    problems: Sequence[PluginProblem] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    brought_by: Mapping[str, str] = field(default_factory=dict)


def load_plugins(
    entry_points: Iterable[metadata.EntryPoint] | None = None,
    only: Sequence[str] | None = None,
    files: Sequence[str | Path] = (),
) -> Plugins:
    """Load plugins into a fresh plugin manager.

    Parameters
    ----------
    entry_points : what to load; `None` for those of all installed distributions.
    only : names of the entry points to load; `None` for what `CORTIQ_PLUGINS` says.
    files : Python files that are plugins.
    """
    loader = _PluginLoader()
    if entry_points is None:
        entry_points = installed_entry_points(loader.reject)
    if only is None:
        only = only_from_environment()
    candidates = sorted((from_entry_point(p) for p in entry_points), key=lambda c: c.name)
    if only is not None:
        loader.report_missing(only, [c.name for c in candidates])
        candidates = [c for c in candidates if c.name in only]
    for candidate in (*candidates, *map(from_file, files)):
        loader.add(candidate)
    return loader.finish()


@dataclass
class _LoadedPlugin:
    """A registered plugin and what its hooks returned."""

    candidate: Candidate
    plugin: object
    backends: list[Backend]
    families: list[ModuleType]
    commands: list[click.Command]
    kernels: list[Kernel]
    drafters: list[DrafterKind]
    tool_dialects: list[ToolDialect]
    overlays: list[OverlayKind]
    rewrites: list[ProgramRewrite]


class _PluginLoader:
    """Registers plugins one by one; an error in one does not affect the others."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.brought: dict[str, _LoadedPlugin] = {}
        self.problems: list[PluginProblem] = []

    def reject(self, name: str, sentence: str, requested: bool = False) -> None:
        self.problems.append(PluginProblem(name, sentence, requested))

    def report_missing(self, only: Sequence[str], installed: Sequence[str]) -> None:
        for name in only:
            if name not in installed:
                others = ", ".join(installed) or "none"
                self.reject(name, f"{ONLY_VARIABLE} names it, but installed are: {others}")

    def add(self, candidate: Candidate) -> None:
        """Load and register one plugin; on an error record the problem and unregister it."""
        try:
            if candidate.name in self.brought:
                first = self.brought[candidate.name].candidate.source
                raise BrokenPluginError(f"another plugin has this name: that of {first}")
            self._register(candidate)
        except (Exception, SystemExit) as error:  # a plugin may raise anything at all
            self._remove(candidate)
            self.reject(candidate.name, checks.problem_sentence(error), candidate.requested)

    def _register(self, candidate: Candidate) -> None:
        try:
            plugin = candidate.load()
        except BrokenPluginError:
            raise
        except (Exception, SystemExit) as error:
            raise BrokenPluginError(f"cannot be imported: {error_line(error)}") from error
        if self.manager.is_registered(plugin):
            raise BrokenPluginError(f"is the plugin {self.manager.get_name(plugin)!r} once more")
        checks.check_marked(plugin)
        self.manager.register(plugin, candidate.name)
        checks.check_hooks(self.manager, plugin)
        self.brought[candidate.name] = _LoadedPlugin(
            candidate,
            plugin,
            checks.check_backends(self._call("cortiq_backends", plugin)),
            checks.check_families(self._call("cortiq_families", plugin)),
            checks.check_commands(self._call("cortiq_commands", plugin)),
            checks.check_kernels(self._call("cortiq_kernels", plugin)),
            checks.check_drafters(self._call("cortiq_drafters", plugin)),
            checks.check_tool_dialects(self._call("cortiq_tool_dialects", plugin)),
            checks.check_overlays(self._call("cortiq_overlays", plugin)),
            checks.check_rewrites(self._call("cortiq_rewrites", plugin)),
        )

    def _call(self, hook: str, plugin: object) -> list[Any]:
        others = [p for p in self.manager.get_plugins() if p is not plugin]
        implemented = any(c.name == hook for c in self.manager.get_hookcallers(plugin) or ())
        if not implemented:
            return []
        return checks.flatten(hook, self.manager.subset_hook_caller(hook, others)())

    def _remove(self, candidate: Candidate) -> None:
        known = self.brought.get(candidate.name)
        if known is None or known.candidate is candidate:
            self.brought.pop(candidate.name, None)
            if self.manager.has_plugin(candidate.name):
                self.manager.unregister(name=candidate.name)

    def finish(self) -> Plugins:
        """Resolve names that two plugins bring, and collect the result."""
        backends = self._settle("backend", lambda b: [x.name for x in b.backends])
        self._settle("command", lambda b: [str(x.name) for x in b.commands])
        by_name = {x.name: x for b in self.brought.values() for x in b.backends}
        for brought in list(self.brought.values()):
            self._give(brought, by_name)
        self._settle("drafter", lambda b: [x.name for x in b.drafters])
        self._settle("rewriting", lambda b: [x.name for x in b.rewrites])
        kept = list(self.brought.values())
        found = sorted((x for b in kept for x in b.backends), key=lambda x: (-x.priority, x.name))
        return Plugins(
            backends={backend.name: backend for backend in found},
            families=[family for b in kept for family in b.families],
            commands={str(c.name): c for b in kept for c in b.commands},
            drafters=[kind for b in kept for kind in b.drafters],
            tool_dialects=[dialect for b in kept for dialect in b.tool_dialects],
            overlays=[kind for b in kept for kind in b.overlays],
            rewrites=[kind for b in kept for kind in b.rewrites],
            problems=self.problems,
            sources={name: b.candidate.source for name, b in self.brought.items()},
            brought_by={n: owner for n, owner in backends.items() if owner in self.brought},
        )

    def _give(self, brought: _LoadedPlugin, backends: Mapping[str, Backend]) -> None:
        """Register a plugin's kernels with their backends; remove the plugin if one is refused."""
        candidate = brought.candidate
        try:
            register_kernels(brought.kernels, backends)
        except BrokenPluginError as error:
            self._remove(candidate)
            self.reject(candidate.name, str(error), candidate.requested)

    def _settle(self, what: str, names: Callable[[_LoadedPlugin], list[str]]) -> dict[str, str]:
        owners: dict[str, str] = {}
        # Plugins that bring something of their own name come first; sorting is stable.
        for brought in sorted(
            self.brought.values(), key=lambda b: b.candidate.name not in names(b)
        ):
            candidate = brought.candidate
            taken = [n for n in names(brought) if n in owners]
            if taken:
                owner = self.brought[owners[taken[0]]].candidate
                self._remove(candidate)
                text = f"brings the {what} {taken[0]!r}, which {owner.source} brings already"
                self.reject(candidate.name, text, candidate.requested)
            else:
                owners |= dict.fromkeys(names(brought), candidate.name)
        return owners


def check_requested(plugins: Plugins) -> None:
    """Raise BackendError for a file that the user named and that was not loaded."""
    for problem in plugins.problems:
        if problem.requested:
            raise BackendError(problem.sentence, where=f"--plugin {problem.name}")


_files: tuple[str | Path, ...] = ()
_default: Plugins | None = None


def use_files(files: Sequence[str | Path]) -> None:
    """Set plugin files (`--plugin FILE.py`) to load when plugins are first needed."""
    global _files, _default
    _files, _default = tuple(files), None


def used_files() -> tuple[str | Path, ...]:
    """Return the files that `use_files` was given."""
    return _files


def default_plugins() -> Plugins:
    """Return the plugins of this process; the first call loads them."""
    global _default
    if _default is None:
        _default = load_plugins(files=_files)
    return _default
