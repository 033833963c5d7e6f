"""A draft head in a file beside the model's: both read as one checkpoint, if they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from cortiq.errors import FormatError
from cortiq.models.config import BaseConfig
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.registry import location_of, read_config

SAME = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "head_width", "v_head_dim",
    "vocab_size",
)  # fmt: skip
"""Keys of a sidecar's configuration that must equal the model's."""
DRAFTS = "num_nextn_predict_layers"
"""A key that may differ: the model's own file need not list draft layers."""


class WithSidecar:
    """A checkpoint followed by the tensors that only its sidecar has."""

    def __init__(self, main: OpenCheckpoint, side: OpenCheckpoint) -> None:
        self._main, self._side = main, side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._main, name)

    def __contains__(self, name: object) -> bool:
        return name in self._main or name in self._side

    @property
    def tensor_names(self) -> Iterator[str]:
        """Names of both."""
        yield from self._main.tensor_names
        yield from (name for name in self._side.tensor_names if name not in self._main)

    def tensor(self, name: str) -> Any:
        """Return the model's tensor, or the sidecar's."""
        return (self._main if name in self._main else self._side).tensor(name)


def check_sidecar(
    main: OpenCheckpoint, ours: BaseConfig, side: OpenCheckpoint, theirs: BaseConfig
) -> BaseConfig:
    """Return the model's configuration, with the draft layers of its sidecar.

    Raises
    ------
    FormatError : what differs, with both values.
    """
    pairs: dict[str, tuple[Any, Any]] = {"architecture": (main.architecture, side.architecture)}
    pairs |= {key: (getattr(ours, key, None), getattr(theirs, key, None)) for key in SAME}
    for key, (mine, other) in pairs.items():
        if mine != other:
            raise FormatError(
                f"is the draft head of another model: its {key} is {other!r}, the model's {mine!r}",
                where=location_of(side),
                hint="move it away, or load with heads='off'",
            )
    drafts: Any = max(getattr(config, DRAFTS, 0) for config in (ours, theirs))
    changes: dict[str, Any] = {DRAFTS: drafts} if drafts else {}
    return replace(ours, **changes)


def with_sidecar(
    checkpoint: OpenCheckpoint,
    config: BaseConfig,
    sidecar: OpenCheckpoint | None,
    family: ModuleType,
) -> tuple[OpenCheckpoint, BaseConfig]:
    """Return a checkpoint and its configuration, with the file beside it if there is one."""
    if sidecar is None:
        return checkpoint, config
    config = check_sidecar(checkpoint, config, sidecar, read_config(family, sidecar))
    return WithSidecar(checkpoint, sidecar), config
