"""Model families as data: each describes a graph; none touches a weight or a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cortiq.models.bind import LoadedProgram, check_weights, load_program

__all__ = ["LoadedProgram", "check_weights", "load_program"]


def __getattr__(name: str) -> Any:
    """Import `bind`, and numpy with it, when it is first needed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cortiq.models import bind

    return getattr(bind, name)
