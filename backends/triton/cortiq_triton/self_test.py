"""The device's arithmetic, looked at once before it is used: one wrong bit and it is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from cortiq.errors import BackendError
from cortiq.numerics import matmul, norms, quantise, scalar
from cortiq.numerics.layouts import W8, Weight, decode
from cortiq.numerics.philox import philox
from cortiq_triton import elementwise, products
from cortiq_triton.language import INTERPRETED, Tensor, device
from cortiq_triton.products import PLAIN, Stack
from cortiq_triton.rows import LAYER, normalised, quantise_rows
from cortiq_triton.scalar import inverse_of_normal
from cortiq_triton.weights import pack

COUNT = 1 << 12
ROWS = 2
Check = Callable[[np.ndarray, str], tuple[np.ndarray, np.ndarray]]


def _values() -> np.ndarray:
    """Numbers from 2⁻²⁰ to 2²⁰ of both signs, and every eighth from −16 to 16: [ROWS, n]."""
    (words, *_) = philox((np.arange(COUNT, dtype=np.uint32), 0, 0, 0), (1, 2))
    bits = (words & np.uint32(0x807FFFFF)) + ((107 + words % np.uint32(40)) << 23)
    values = bits.astype(np.uint32).view(np.float32)
    values[:256] = np.arange(-128, 128, dtype=np.float32) / np.float32(8)
    return values.reshape(ROWS, -1)


def _flags(rows: int, device: str) -> torch.Tensor:
    return torch.zeros(rows, dtype=torch.int32, device=device)


def _activation(name: str) -> Check:
    def check(x: np.ndarray, device: str) -> tuple[np.ndarray, np.ndarray]:
        given = torch.tensor(x, device=device)
        y = elementwise.apply(elementwise.ACTIVATIONS[name], given, _flags(len(x), device))
        return y.cpu().numpy(), scalar.activation(x, name)

    return check


@device
def _inverse(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """1/x."""
    return inverse_of_normal(x)


def _inverses(x: np.ndarray, device: str) -> tuple[np.ndarray, np.ndarray]:
    """1/x of every x from 1 to 2: of every 4,096th in the interpreter, which divides."""
    step = 1 << 12 if INTERPRETED else 1
    given = np.arange(0x3F800000, 0x40000001, step, dtype=np.int32).view(np.float32)[None]
    there = torch.tensor(given, device=device)
    y = elementwise.apply(_inverse, there, _flags(1, device))
    return y.cpu().numpy(), np.float32(1) / given


def _norm(x: np.ndarray, device: str) -> tuple[np.ndarray, np.ndarray]:
    """Sums in order, division and square root."""
    ones, zeros = np.ones(x.shape[1], np.float32), np.zeros(x.shape[1], np.float32)
    given = [torch.tensor(part, device=device) for part in (x, ones, zeros)]
    y = normalised(LAYER, given[0], _flags(len(x), device), 1e-5, *given[1:])
    return y.cpu().numpy(), norms.layer_norm(x, ones, zeros, 1e-5)


def _dots(rows: int) -> Check:
    """A product of the largest integers that a weight and a row hold, by few or by many rows."""

    def check(x: np.ndarray, device: str) -> tuple[np.ndarray, np.ndarray]:
        q = np.repeat(np.sign(x[:1]) * np.float32(1.9), rows, axis=0)
        codes = np.where(x[:1] > 0, 127, -127).astype(np.int8).repeat(16, axis=0)
        scale = np.full((16, 1), 2.0**-20, np.float32)
        weight = Weight(W8, codes.shape, {"codes": codes, "scale": scale})
        given = quantise_rows(torch.tensor(q, device=device))
        packed = pack(weight, "gate", device)
        y = products.product(packed, given, rows, _flags(rows, device), Stack(PLAIN, 16))
        return y.cpu().numpy(), matmul.matmul(quantise.quantise_rows(q), decode(weight))

    return check


CHECKS: dict[str, Check] = {
    "1/x": _inverses,
    "σ": _activation("sigmoid"),
    "tanh": _activation("tanh"),
    "ln(1 + e^x)": _activation("softplus"),
    "a layer norm": _norm,
    "a product of one row": _dots(1),
    "a product of many rows": _dots(16),
}
"""Kernels beside the definitions that they must agree with."""


@cache
def check_device(device: str) -> None:
    """`BackendError` if the device computes another bit than the contract has."""
    x = _values()
    for name, check in CHECKS.items():
        got, defined = check(x, device)
        if (got.view(np.uint32) != defined.view(np.uint32)).any():
            raise BackendError(
                f"triton on {device} computes {name} with other bits than the contract's",
                hint="Another version of triton or of the driver may not.",
            )
