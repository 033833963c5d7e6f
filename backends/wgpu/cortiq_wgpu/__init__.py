"""A backend in WGSL for every GPU; wgpu is imported when the backend is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl
from cortiq_wgpu.shader import RowShader

if TYPE_CHECKING:
    from cortiq_wgpu.backend import WgpuBackend

__all__ = ["RowShader", "cortiq_backends"]


@hookimpl
def cortiq_backends() -> Sequence[WgpuBackend]:
    """Return the backend of this package."""
    from cortiq_wgpu.backend import WgpuBackend

    return [WgpuBackend()]
