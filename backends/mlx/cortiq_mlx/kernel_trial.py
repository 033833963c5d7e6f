"""Trials of custom kernels on a device: those with the bits of the array operations are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from cortiq.backend.array_attention import AttentionGeometry, attend
from cortiq.numerics.attention import scoring
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.philox import philox
from cortiq_mlx import custom_kernels
from cortiq_mlx.array_library import FLOATS
from cortiq_mlx.kernel_sources import MATVEC, QUANTISE, TILE, KernelSource
from cortiq_mlx.library import DEVICES, mx
from cortiq_mlx.matrices import MlxMatrix
from cortiq_mlx.quantised_rows import CachedPlanes, Faults

WIDTH = 768


def _floats(rows: int, columns: int, key: int) -> np.ndarray:
    """Return values around 2⁻⁸ … 2⁸ of both signs, ties among them; the second row is zero."""
    counter = np.arange(rows * columns, dtype=np.uint32)
    words = philox((counter, 0, 0, 0), (key, 3))[0]
    bits = (words & np.uint32(0x807FF000)) + ((119 + words % np.uint32(17)) << 23)
    x = bits.astype(np.uint32).view(np.float32).reshape(rows, columns).copy()
    x[1:2] = 0
    return x


def _bytes(shape: tuple[int, ...], key: int) -> np.ndarray:
    count = int(np.prod(shape))
    words = philox((np.arange(count, dtype=np.uint32), 1, 0, 0), (key, 5))[0]
    return (words & np.uint32(255)).astype(np.uint8).reshape(shape)


def _quantise() -> list[mx.array]:
    return list(FLOATS.quantised(mx.array(_floats(3, WIDTH, 1))))


def _matvec() -> list[mx.array]:
    """Multiply by one layout of each form that the kernel knows."""
    found = []
    for name in ("Q4_1", "Q8_0", "Q5_K", "Q6_K"):
        layout = LAYOUTS[name]
        raw = _bytes((70, WIDTH // layout.block, layout.block_bytes), 2)
        for at in {"Q4_1": (0, 2), "Q8_0": (0,), "Q5_K": (0, 2), "Q6_K": (208,)}[name]:
            raw[:, :, at + 1] = raw[:, :, at + 1] & 0x9F | 0x20  # halves of moderate size
        matrix = MlxMatrix(Weight.from_bytes(layout, raw.reshape(-1), (70, WIDTH)), name)
        matrix.split()
        found.append(
            matrix.product(FLOATS.quantised(mx.array(_floats(3, WIDTH, 4))[None]), Faults(3))
        )
    return found


def _tile() -> list[mx.array]:
    """Attend to two tiles with a window, the second not full."""
    sides = [_bytes((100, 2, 2, dim), dim).view(np.int8) for dim in (64, 48)]
    exponents = [(_bytes((100, 2), key) % 8).astype(np.int8) - 16 for key in (7, 8)]
    keys, values = (
        CachedPlanes(mx.array(np.clip(side, -126, 126)), mx.array(e))
        for side, e in zip(sides, exponents, strict=True)
    )
    q = FLOATS.quantised(mx.array(_floats(2 * 4, 64, 9).reshape(2, 4, 64)))
    how = AttentionGeometry(scoring(0.125), 90, None)
    return [attend(FLOATS, q, keys, values, [98, 99], how, {})[0]]


TRIALS: Sequence[tuple[KernelSource, Callable[[], list[mx.array]]]] = (
    (QUANTISE, _quantise),
    (MATVEC, _matvec),
    (TILE, _tile),
)


@cache
def confirmed(device: str) -> frozenset[str]:
    """Return the names of the kernels that compile there with the bits of the array operations."""
    if custom_kernels.target_of(device) is None:
        return frozenset()
    with mx.stream(DEVICES[device]):
        return frozenset(body.name for body, made in TRIALS if _agrees(body, made))


def _agrees(body: KernelSource, made: Callable[[], list[mx.array]]) -> bool:
    expected = [np.array(array) for array in made()]
    try:
        with custom_kernels.using(frozenset({body.name})):
            got = [np.array(array) for array in made()]
    except RuntimeError:  # MLX: it does not compile here, or cannot be launched
        return False
    return all(a.tobytes() == b.tobytes() for a, b in zip(got, expected, strict=True))
