"""The adapters that wgpu finds, under names that choose them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cortiq.backend import Device
from cortiq.errors import BackendError

NO_COMPUTE = ("OpenGL", "OpenGLES")
"""Interfaces passed over: their compute shaders are incomplete."""
HINT = "Install a Vulkan driver (on Linux without a GPU: mesa-vulkan-drivers)."


def found() -> list[Any]:
    """List adapters with compute shaders, real devices before software.

    Raises
    ------
    BackendError : wgpu is not installed, or finds none.
    """
    _load_triton_first()
    if sys.platform == "linux":  # the drivers write an error to stderr where nothing is set
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    try:
        import wgpu
    except ImportError as missing:
        raise BackendError(f"wgpu cannot be imported: {missing}", hint="pip install wgpu") from None
    adapters = [
        adapter
        for adapter in wgpu.gpu.enumerate_adapters_sync()
        if adapter.info["backend_type"] not in NO_COMPUTE
    ]
    if not adapters:
        raise BackendError("wgpu finds no Vulkan, Metal or Direct3D adapter", hint=HINT)
    return sorted(adapters, key=lambda adapter: adapter.info["adapter_type"] == "CPU")


def _load_triton_first() -> None:
    """Have Triton loaded where it is installed: it brings an LLVM of its own, and the process dies
    if that comes after the one of Mesa's software Vulkan (Triton 3.9, Mesa 22.3).
    """
    if sys.platform == "linux" and find_spec("triton") is not None:
        with suppress(ImportError):
            import_module("triton")


def name_of(adapter: Any) -> str:
    """Make a short name: the device's words before any bracket, in lower case, joined by dashes."""
    words = re.split(r"[^a-z0-9.]+", adapter.info["device"].lower().split("(")[0])
    return "-".join(word for word in words if word) or adapter.info["backend_type"].lower()


def names(adapters: Sequence[Any]) -> list[str]:
    """Name each adapter: the second of the same name is NAME-2."""
    seen: dict[str, int] = {}
    named = []
    for adapter in adapters:
        name = name_of(adapter)
        seen[name] = seen.get(name, 0) + 1
        named.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return named


def devices() -> list[Device]:
    """Describe the adapters for `cortiq backends`."""
    adapters = found()
    return [
        Device(name, f"{i}: {adapter.info['device']}, {adapter.info['backend_type']}")
        for i, (name, adapter) in enumerate(zip(names(adapters), adapters, strict=True))
    ]


def chosen(device: str | None) -> tuple[str, Any]:
    """Return the adapter of a name or a number, by default the first, and its name.

    Raises
    ------
    BackendError : there is no such adapter.
    """
    adapters = found()
    known = names(adapters)
    if device is None:
        return known[0], adapters[0]
    place = known.index(device) if device in known else -1
    if device.isdecimal() and int(device) < len(known):
        place = int(device)
    if place < 0:
        raise BackendError(
            f"wgpu has no device {device!r}", hint=f"There are: {', '.join(known)}, or 0, 1, …"
        )
    return known[place], adapters[place]
