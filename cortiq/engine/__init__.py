"""The generation engine: many sequences in one batch, cached prefixes, verified drafts.

All of it is scheduling. A row's bits depend on that row's inputs only (docs/NUMERICS.md), so batch,
chunk size, reuse and drafts decide how long a token takes, never which one it is. `Engine` serves
requests on any executable, and knows neither models' files nor the command line nor the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cortiq.engine.cache_roles import CachePoint, CacheRole
    from cortiq.engine.drafting import (
        DepthPolicy,
        Draft,
        Drafter,
        Drafting,
        FixedDepth,
        Round,
        Speculation,
        Task,
    )
    from cortiq.engine.engine import Engine
    from cortiq.engine.output import Output
    from cortiq.engine.prefixes import PrefixCache
    from cortiq.engine.request import Request, make_request
    from cortiq.engine.scheduler import EngineOptions
    from cortiq.engine.sequence import Sequence
    from cortiq.engine.session import Session
    from cortiq.engine.statistics import Statistics

_MODULES = {
    "cache_roles": ("CachePoint", "CacheRole"),
    "drafting": (
        "DepthPolicy", "Draft", "Drafter", "Drafting", "FixedDepth", "Round", "Speculation", "Task",
    ),
    "engine": ("Engine",),
    "output": ("Output",),
    "prefixes": ("PrefixCache",),
    "request": ("Request", "make_request"),
    "scheduler": ("EngineOptions",),
    "sequence": ("Sequence",),
    "session": ("Session",),
    "statistics": ("Statistics",),
}  # fmt: skip
"""Public names by module, each imported when it is first used."""

__all__ = [
    "CachePoint",
    "CacheRole",
    "DepthPolicy",
    "Draft",
    "Drafter",
    "Drafting",
    "Engine",
    "EngineOptions",
    "FixedDepth",
    "Output",
    "PrefixCache",
    "Request",
    "Round",
    "Sequence",
    "Session",
    "Speculation",
    "Statistics",
    "Task",
    "make_request",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"cortiq.engine.{module}"), name)
    raise AttributeError(f"module 'cortiq.engine' has no attribute {name!r}")
