"""A backend in plain PyTorch; torch is imported when the backend is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from cortiq_torch.backend import TorchBackend


@hookimpl
def cortiq_backends() -> Sequence[TorchBackend]:
    """Return the backend of this package."""
    from cortiq_torch.backend import TorchBackend

    return [TorchBackend()]
