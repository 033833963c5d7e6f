"""cortiq: language models from one backend-neutral graph, with the same bits on every device.

>>> import cortiq
>>> model = cortiq.load("smollm2")  # doctest: +SKIP
>>> model.generate("The capital of France is").text  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortiq.errors import CortiqError

if TYPE_CHECKING:
    from cortiq.options import EmbedOptions, GenerateOptions, LoadOptions, ScoreOptions
    from cortiq.receipts.record import Receipt
    from cortiq.receipts.replay import Verification
    from cortiq.receipts.verify import verify
    from cortiq.runtime.asynchronous import AsyncModel, load_async
    from cortiq.runtime.conversation import Conversation
    from cortiq.runtime.generate import Generation
    from cortiq.runtime.likelihood import Likelihood
    from cortiq.runtime.load import load
    from cortiq.runtime.model import Model
    from cortiq.runtime.score import Score

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
    "load": "cortiq.runtime.load",
    "load_async": "cortiq.runtime.asynchronous",
    "AsyncModel": "cortiq.runtime.asynchronous",
    "Conversation": "cortiq.runtime.conversation",
    "Model": "cortiq.runtime.model",
    "Generation": "cortiq.runtime.generate",
    "Score": "cortiq.runtime.score",
    "Likelihood": "cortiq.runtime.likelihood",
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
