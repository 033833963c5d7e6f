"""Self test of a device's arithmetic before its first use: one wrong bit and it is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from cortiq.backend.self_test import check_operations
from cortiq.errors import BackendError
from cortiq_torch.array_library import TorchArrays

Operation = Callable[[Tensor, Tensor], Tensor]

OPERATIONS: dict[str, tuple[Operation, Callable[..., np.ndarray]]] = {
    "a + b": (lambda a, b: a + b, lambda a, b: a + b),
    "a * b": (lambda a, b: a * b, lambda a, b: a * b),
    "a / b": (lambda a, b: a / b, lambda a, b: a / b),
    "sqrt |a|": (lambda a, b: a.abs().double().sqrt().float(), lambda a, b: np.sqrt(np.abs(a))),
    "rint(a)": (lambda a, b: (a * 4).round(), lambda a, b: np.rint(a * np.float32(4))),
    "float64 to float32": (
        lambda a, b: (a.double() * b.double()).float(),
        lambda a, b: (a.astype(np.float64) * b.astype(np.float64)).astype(np.float32),
    ),
}
"""What the kernels are made of, in torch and in NumPy."""


@cache
def check_device(device: str) -> None:
    """Raise `BackendError` if the device computes another bit than IEEE arithmetic has."""
    check_operations(f"torch on {device}", TorchArrays(device), OPERATIONS)
    _check_products(device)


def _check_products(device: str) -> None:
    """Check a float64 product of the largest integers that a weight and a row hold."""
    q = torch.full((3, 4096), 32512.0, dtype=torch.float64, device=device)
    codes = torch.full((4096, 5), -32639.0, dtype=torch.float64, device=device)
    if not ((q @ codes) == -32512.0 * 32639.0 * 4096).all():
        raise BackendError(f"torch on {device} does not add integers exactly in float64")
