"""cortiq: language models from one backend-neutral graph, with the same bits on every device.

>>> import cortiq
>>> model = cortiq.load("smollm2")  # doctest: +SKIP
>>> model.generate("The capital of France is").text  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortiq.errors import CortiqError

if TYPE_CHECKING:
    from cortiq.model.asynchronous import AsyncModel, load_async
    from cortiq.model.conversation import Conversation
    from cortiq.model.generation import Generation
    from cortiq.model.likelihood import Likelihood
    from cortiq.model.load import load
    from cortiq.model.model import Model
    from cortiq.model.score import Score
    from cortiq.options import EmbedOptions, GenerateOptions, LoadOptions, ScoreOptions
    from cortiq.receipts.difference import Verification
    from cortiq.receipts.record import Receipt
    from cortiq.receipts.verify import verify

    __version__: str

__all__ = [
    "AsyncModel",
    "Conversation",
    "CortiqError",
    "EmbedOptions",
    "GenerateOptions",
    "Generation",
    "Likelihood",
    "LoadOptions",
    "Model",
    "Receipt",
    "Score",
    "ScoreOptions",
    "Verification",
    "__version__",
    "load",
    "load_async",
    "verify",
]

_LAZY = {
    "load": "cortiq.model.load",
    "load_async": "cortiq.model.asynchronous",
    "AsyncModel": "cortiq.model.asynchronous",
    "Conversation": "cortiq.model.conversation",
    "Model": "cortiq.model.model",
    "Generation": "cortiq.model.generation",
    "Score": "cortiq.model.score",
    "Likelihood": "cortiq.model.likelihood",
    "Receipt": "cortiq.receipts.record",
    "Verification": "cortiq.receipts.replay",
    "verify": "cortiq.receipts.verify",
    "LoadOptions": "cortiq.options",
    "GenerateOptions": "cortiq.options",
    "ScoreOptions": "cortiq.options",
    "EmbedOptions": "cortiq.options",
}
"""Names of the API that bring NumPy with them, imported when they are first used."""


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _LAZY:
        raise AttributeError(f"module 'cortiq' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("cortiq")
    except metadata.PackageNotFoundError:
        return "(not installed)"
