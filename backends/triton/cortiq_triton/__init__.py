"""A backend for NVIDIA GPUs, written in Triton; torch and triton are imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from cortiq_triton.backend import TritonBackend


@hookimpl
def cortiq_backends() -> Sequence[TritonBackend]:
    """The backend of this package."""
    from cortiq_triton.backend import TritonBackend

    return [TritonBackend()]
