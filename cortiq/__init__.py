"""cortiq: language models from one backend-neutral graph, with the same bits on every device.

>>> import cortiq
>>> model = cortiq.load("smollm2")  # doctest: +SKIP
>>> model.generate("The capital of France is").text  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortiq.errors import CortiqError

if TYPE_CHECKING:
    from cortiq.runtime.generate import Generation
    from cortiq.runtime.load import load
    from cortiq.runtime.model import Model

__all__ = ["CortiqError", "Generation", "Model", "load"]

_LAZY = {
    "load": "cortiq.runtime.load",
    "Model": "cortiq.runtime.model",
    "Generation": "cortiq.runtime.generate",
}
"""Names of the API that bring NumPy with them, imported when they are first used."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cortiq' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
