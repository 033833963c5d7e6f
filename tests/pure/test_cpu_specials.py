"""Numbers that no kernel should meet give the same bits on every processor.

Infinities, NaNs, zeros of either sign and subnormals: minima and maxima of such numbers, and
conversions of them, differ between processors' instructions. Kernels use none of that, so that
what follows a fault is the same everywhere as well. The words below were computed by the portable
kernels on x86-64; every instruction set of any processor has to give them.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from native_ops import PATHS, args, read_rows, record_buffer, run_ops
from test_cpu_kernels import Kind, elementwise

from cortiq.numerics import scalar
from cortiq.numerics.contract import F32

SPECIAL = np.array(
    [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x80000000, 0, 1, 0x807FFFFF, 0x5D800000,
     0xDD800000, 0x2B800000, 0x2B7FFFFF, 0xAB800000, 0x58800000, 0x587FFFFF, 0x42A00000],
    np.uint32,
).view(F32)  # fmt: skip
"""±∞, NaNs, ±0, subnormals, ±2⁶⁰, the edges of the domain and 80."""
EXPECTED = {
    "ADD": "0dde1687d6352b99", "MULTIPLY": "2e74e355483d2b83", "quantise": "c0c400038bf40535",
    "silu": "7625012fb07108b4", "gelu_tanh": "7625012fb07108b4", "gelu": "7625012fb07108b4",
    "exp": "47eef429447012fa", "sigmoid": "5ebac6fcb30c54b4", "tanh": "fe0db2f0ddbfdced",
    "softplus": "f8093c15b538794a", "relu": "8d11b78b0ee7c34f", "relu2": "ba6c3ec01b7cd72a",
    "signed_root": "fe47288f1b45df7e",
}  # fmt: skip
pytestmark = pytest.mark.parametrize("path", PATHS)


def pairs():
    """Rows in which every special number meets every other, in every lane."""
    a = np.stack([np.roll(np.resize(SPECIAL, 37), shift) for shift in range(16)])
    return np.ascontiguousarray(a), np.ascontiguousarray(np.resize(SPECIAL, (16, 37)))


def words(*arrays):
    """Digest of bits, in which all NaNs would be one: none may be among them."""
    for array in arrays:
        assert array.dtype != F32 or not np.isnan(array).any()
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


@pytest.mark.parametrize("kind", [Kind.ADD, Kind.MULTIPLY])
def test_sums_and_products(path, kind):
    out, faults, _ = elementwise(path, kind, *pairs())
    assert words(out, faults) == EXPECTED[kind.name]


@pytest.mark.parametrize("function", list(scalar.ACTIVATIONS))
def test_activations(path, function):
    number = list(scalar.ACTIVATIONS).index(function)
    out, faults, _ = elementwise(path, Kind.ACTIVATION, *pairs(), function=number)
    assert words(out, faults) == EXPECTED[function]


def test_quantised(path):
    a, _ = pairs()
    rows = a[:, :12].copy()
    rows[np.abs(np.nan_to_num(rows, nan=np.inf)) >= 2.0**50] = 3.5
    records = record_buffer(16, 12)
    struct = args.QuantiseArgs(args.address(rows), args.address(records), 12, 1, 12)
    run_ops(path, 16, (Kind.QUANTISE, struct))
    found = read_rows(records, 12)
    assert words(found.q, found.e) == EXPECTED["quantise"]
