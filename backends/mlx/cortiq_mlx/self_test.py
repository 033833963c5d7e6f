"""Self test of a device's arithmetic before its first use: one wrong bit and it is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from cortiq.backend.self_test import COUNT, check_operations
from cortiq.errors import BackendError
from cortiq.numerics.philox import philox
from cortiq_mlx.array_library import MlxArrays
from cortiq_mlx.exact_sums import EXACT, exact_matmul, trust_wide
from cortiq_mlx.library import DEVICES, mx

Operation = Callable[[mx.array, mx.array], mx.array]

OPERATIONS: dict[str, tuple[Operation, Callable[..., np.ndarray]]] = {
    "a + b": (lambda a, b: a + b, lambda a, b: a + b),
    "a - b": (lambda a, b: a - b, lambda a, b: a - b),
    "a * b": (lambda a, b: a * b, lambda a, b: a * b),
    "a / b": (lambda a, b: a / b, lambda a, b: a / b),
    "a*b + a": (lambda a, b: a * b + a, lambda a, b: a * b + a),
    "sqrt |a|": (lambda a, b: mx.sqrt(mx.abs(a)), lambda a, b: np.sqrt(np.abs(a))),
    "1 / sqrt |a|": (
        lambda a, b: 1.0 / mx.sqrt(mx.abs(a) + 1.0),
        lambda a, b: np.float32(1) / np.sqrt(np.abs(a) + np.float32(1)),
    ),
    "rint(a)": (lambda a, b: mx.round(a * 4.0) + 0.0, lambda a, b: np.rint(a * np.float32(4)) + 0),
    "floor |a|": (lambda a, b: mx.floor(mx.abs(a)), lambda a, b: np.floor(np.abs(a))),
    "float of an integer": (
        lambda a, b: (a.view(mx.int32) >> 7).astype(mx.float32),
        lambda a, b: (a.view(np.int32) >> 7).astype(np.float32),
    ),
}
"""What the kernels are made of, in MLX and in NumPy."""


@cache
def check_device(device: str) -> None:
    """Raise `BackendError` if the device computes another bit than IEEE arithmetic has."""
    with mx.stream(DEVICES[device]):
        check_operations(f"MLX on {device}", MlxArrays(device), OPERATIONS)
        trust_wide(_rounds_wide())
        _check_products(device)


def _rounds_wide() -> bool:
    """Check whether int32 and int64 become float32 with one rounding."""
    words = philox((np.arange(COUNT, dtype=np.uint32), 2, 0, 0), (1, 2))
    wide = (words[0].astype(np.int64) << 14) ^ words[1].astype(np.int64)
    wide = wide * (1 - 2 * (words[2] & 1).astype(np.int64)) >> (words[3] % 23).astype(np.int64)
    narrow = words[0].view(np.int32)
    return all(
        bool((np.array(mx.array(i).astype(mx.float32)) == i.astype(np.float32)).all())
        for i in (wide, narrow)
    )


def _check_products(device: str) -> None:
    """Check matmuls with the largest sums that `exact_sums` lets in, in shapes of all kernels."""
    for rows, terms, columns, low, high in (
        (1, 1024, 96, 127, 129),
        (1, 32, 576, 32512, 16),
        (48, 1024, 64, 127, 129),
        (33, 64, 130, 127, 129),
    ):
        left = np.full((2, rows, terms), low, np.int32)
        left[:, :, 1::2] -= 1
        right = np.full((2, terms, columns), high - 1, np.int32)
        right[:, ::3] *= -1
        limits = low, high
        if terms * low * high > EXACT:
            limits = low, EXACT // (terms * low)
        got = exact_matmul(mx.array(left), mx.array(right), *limits)
        sums = np.matmul(left.astype(np.int64), right.astype(np.int64))
        if (np.array(got) != sums.astype(np.float32)).any():
            raise BackendError(f"MLX on {device} does not add integers exactly in float32")
