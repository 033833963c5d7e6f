"""The MLX backend; MLX is imported when the backend is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from cortiq_mlx.backend import MlxBackend


@hookimpl
def cortiq_backends() -> Sequence[MlxBackend]:
    """Return the backend of this package."""
    from cortiq_mlx.backend import MlxBackend

    return [MlxBackend()]
