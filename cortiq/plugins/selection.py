"""Which backend runs: what the user names, what the environment names, else the best there is."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.errors import BackendError, CortiqError
from cortiq.plugins.checks import BrokenPluginError, check_backend
from cortiq.plugins.extras import install_command
from cortiq.plugins.loading import Plugins, check_requested, default_plugins

if TYPE_CHECKING:
    from cortiq.backend import Backend, Device

BACKEND_VARIABLE = "CORTIQ_BACKEND"
FALLBACK = "reference"
"""Name of the backend that computes what others decline."""


def find_backend(
    spec: str | Backend | None = None, plugins: Plugins | None = None
) -> tuple[Backend, str | None]:
    """Find the backend to run on, and the name of its device if one was named.

    Parameters
    ----------
    spec : `NAME` or `NAME:DEVICE`, by the device's name or its number among the backend's, from 0;
        `None` for what `CORTIQ_BACKEND` says, else for the available backend of the highest
        priority. A backend itself, of no plugin, is checked as one of a plugin is.
    plugins : where to look; `None` for the plugins of this process.

    Raises
    ------
    BackendError : unknown (with those there are and the nearest name), unavailable (with its own
        reason), no such device, or a plugin file the user named was not loaded.
    """
    plugins = default_plugins() if plugins is None else plugins
    check_requested(plugins)
    if spec is None:
        spec = os.environ.get(BACKEND_VARIABLE) or None
    if spec is None:
        return _best(plugins), None
    if not isinstance(spec, str):
        return spec, device_of(_checked(spec), "")
    name, _, device = spec.partition(":")
    backend = plugins.backends.get(name)
    if backend is None:
        raise _unknown(name, plugins)
    return backend, device_of(backend, device)


def _checked(backend: Backend) -> Backend:
    """Return a backend that the caller has; BackendError where it is none."""
    try:
        check_backend(backend)
    except BrokenPluginError as error:
        raise BackendError(str(error), where="backend") from None
    return backend


def device_of(backend: Backend, device: str) -> str | None:
    """Return the name of a device of a backend, None where none is asked for.

    Raises
    ------
    BackendError : the backend is not available, or has no such device.
    """
    found, reason = availability(backend)
    if reason is not None:
        raise BackendError(f"the backend {backend.name!r} is not available: {reason}")
    names = [d.name for d in found]
    if device.isdecimal() and device not in names and int(device) < len(names):
        device = names[int(device)]
    if device and device not in names:
        what, there = f"the backend {backend.name!r} has no device {device!r}", ", ".join(names)
        raise BackendError(what, hint=f"It has {there}")
    return device or None


def fallback_backend(plugins: Plugins | None = None) -> Backend:
    """The backend that computes what others decline: the reference."""
    return find_backend(FALLBACK, plugins)[0]


def availability(backend: Backend) -> tuple[Sequence[Device], str | None]:
    """Devices of a backend, and why there are none (`None` if there are)."""
    from cortiq.backend.seam import devices_of  # numpy, which `cortiq --help` must not need

    try:
        devices = devices_of(backend)
    except CortiqError as error:
        return (), str(error)
    except (Exception, SystemExit) as error:  # a backend may raise anything at all
        return (), f"looking for devices failed: {type(error).__name__}: {error}"
    return (devices, None) if devices else ((), "it found no device")


def _best(plugins: Plugins) -> Backend:
    reasons = []
    for backend in plugins.backends.values():  # the highest priority first
        _, reason = availability(backend)
        if reason is None:
            return backend
        reasons.append(f"{backend.name}: {reason}")
    reasons += [f"{p.name}: {p.sentence}" for p in plugins.problems]
    raise BackendError(
        "no backend is available",
        hint="\n  ".join(reasons) or install_command("cortiq-reference"),
    )


def _unknown(name: str, plugins: Plugins) -> BackendError:
    there = ", ".join(plugins.backends) or "none"
    lines = [f"There are: {there}."]
    near = difflib.get_close_matches(name, plugins.backends, n=1)
    if near:
        lines.append(f"Did you mean {near[0]}?")
    lines += [f"Not loaded: {p.name}: {p.sentence}" for p in plugins.problems]
    return BackendError(f"no backend is named {name!r}", hint="\n  ".join(lines))
