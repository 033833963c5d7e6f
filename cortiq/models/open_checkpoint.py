"""An open model, as families read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class OpenCheckpoint(Protocol):
    """An open model, as `cortiq.formats.checkpoint` opens it."""

    @property
    def kind(self) -> str:
        """`gguf`, `huggingface` or `synthetic`."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Metadata of a GGUF file, or the object of config.json."""

    @property
    def architecture(self) -> str:
        """GGUF's `general.architecture`, or `model_type`."""

    @property
    def tensor_names(self) -> Iterable[str]:
        """Names of all tensors."""

    def __contains__(self, name: object) -> bool: ...

    def tensor(self, name: str) -> Any:
        """Return a tensor with `shape`, `type` and `raw`."""
