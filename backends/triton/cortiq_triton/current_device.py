"""The device that a thread launches on: PyTorch has one a thread, at first the first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def current(device: str) -> AbstractContextManager[Any]:
    """Return what has a thread launch on a device inside."""
    return nullcontext() if device == "cpu" else torch.cuda.device(device)


def on_own_device(method: F) -> F:
    """Return a method that launches on the `device` of its object, whatever thread calls it."""

    @wraps(method)
    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        with current(self.device):
            return method(self, *arguments, **named)

    return called  # type: ignore[return-value]
