"""Choosing a backend: the user's choice, the environment's, else the best available."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.errors import BackendError, CortiqError
from cortiq.plugins.checks import BrokenPluginError, check_backend
from cortiq.plugins.extras import CORE, checkout_folder, install_command
from cortiq.plugins.loading import Plugins, check_requested, default_plugins

if TYPE_CHECKING:
    from cortiq.backend import Backend, Device

BACKEND_VARIABLE = "CORTIQ_BACKEND"
MOST_LISTED = 16
"""A backend with more devices than these is listed on one line, and none of them is tried."""
FALLBACK = "reference"
"""Name of the backend that computes nodes which others decline."""
OTHER_NAMES = {
    "cuda": ("triton",), "nvidia": ("triton",), "gpu": ("triton", "mlx", "wgpu"),
    "metal": ("mlx", "wgpu"), "mps": ("mlx",), "apple": ("mlx",), "vulkan": ("wgpu",),
    "webgpu": ("wgpu",), "rocm": ("wgpu",), "hip": ("wgpu",), "directx": ("wgpu",),
    "numpy": ("reference",), "native": ("cpu",), "pytorch": ("torch",),
}  # fmt: skip
"""Backends by names under which other programs know what computes there, the usual one first."""


def find_backend(
    spec: str | Backend | None = None, plugins: Plugins | None = None
) -> tuple[Backend, str | None]:
    """Find the backend to run on, and the name of its device if one was named.

    Parameters
    ----------
    spec : `NAME` or `NAME:DEVICE`, by the device's name or its number among the backend's, from 0;
        `None` for that in `CORTIQ_BACKEND`, else for the available backend of the highest priority.
        A backend object that no plugin brings is checked like a plugin's.
    plugins : plugins to search; `None` for the plugins of this process.

    Raises
    ------
    BackendError : unknown (listing known names), unavailable (with the reason), no such device, or
        a plugin file that the user named was not loaded.
    """
    plugins = default_plugins() if plugins is None else plugins
    check_requested(plugins)
    if spec is None:
        spec = os.environ.get(BACKEND_VARIABLE) or None
    if spec is None:
        return _best_backend(plugins), None
    if not isinstance(spec, str):
        return spec, device_of(_checked_backend(spec), "")
    name, _, device = spec.partition(":")
    backend = plugins.backends.get(name)
    if backend is None:
        raise _unknown_backend(name, plugins)
    return backend, device_of(backend, device)


def _checked_backend(backend: Backend) -> Backend:
    """Return a backend object after checking it; raise BackendError if it is none."""
    try:
        check_backend(backend)
    except BrokenPluginError as error:
        raise BackendError(str(error), where="backend") from None
    return backend


def device_of(backend: Backend, device: str) -> str | None:
    """Return the name of a backend's device, or None if none was requested.

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
    """Return the backend that computes nodes which others decline: the reference."""
    return find_backend(FALLBACK, plugins)[0]


def availability(backend: Backend) -> tuple[Sequence[Device], str | None]:
    """Return a backend's devices, and the reason if there are none."""
    from cortiq.backend.seam import devices_of  # numpy, which `cortiq --help` must not need

    try:
        devices = devices_of(backend)
    except CortiqError as error:
        return (), str(error)
    except (Exception, SystemExit) as error:  # a backend may raise anything at all
        return (), f"looking for devices failed: {type(error).__name__}: {error}"
    return (devices, None) if devices else ((), "it found no device")


def _best_backend(plugins: Plugins) -> Backend:
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


def _unknown_backend(name: str, plugins: Plugins) -> BackendError:
    there = ", ".join(plugins.backends) or "none"
    lines = [f"There are: {there}."]
    usual = [one for one in OTHER_NAMES.get(name, ()) if one in plugins.backends]
    near = usual or difflib.get_close_matches(name, plugins.backends, n=1)
    wanted = next(iter(OTHER_NAMES.get(name, ())), name)
    package = f"{CORE}-{wanted}"
    if not usual and checkout_folder(package):
        lines.append(f"To have it: {install_command(package)}")
    elif near:
        lines.append(f"Did you mean {' or '.join(near)}?")
    lines += [f"Not loaded: {p.name}: {p.sentence}" for p in plugins.problems]
    return BackendError(f"no backend is named {name!r}", hint="\n  ".join(lines))
