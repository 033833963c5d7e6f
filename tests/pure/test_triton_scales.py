"""Scales of other programs' formats on a device: as small as in files, and the same bits."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from cortiq.numerics import matmul, quantise  # noqa: E402
from cortiq.numerics.groupquants import E4M3_VALUES  # noqa: E402
from cortiq.numerics.layouts import LAYOUTS, Weight, decode  # noqa: E402
from cortiq.numerics.weights import weight_values  # noqa: E402
from cortiq_triton import products  # noqa: E402
from cortiq_triton.products import PLAIN, Stack  # noqa: E402
from cortiq_triton.rows import quantise_rows  # noqa: E402
from cortiq_triton.scales import RAISED, e4m3_scales  # noqa: E402
from cortiq_triton.weights import pack  # noqa: E402

ROWS, COLUMNS = 16, 1184
BYTES = E4M3_VALUES[:127].astype(np.float32) * np.float32(2**-9)


def group_scales(kind, shape):
    rng = np.random.default_rng(3)
    free = (rng.uniform(1, 2, shape) / 64).astype(np.float32)
    units = np.repeat(np.array([0.00123, 0.00456], np.float32), shape[0] // 2)[:, None]
    if kind == "f16 of 128":
        return np.repeat(free[:, ::4].astype(np.float16).astype(np.float32), 4, 1)[:, : shape[1]]
    if kind == "bf16":
        return (free.view(np.uint32) & 0xFFFF0000).view(np.float32)
    if kind == "bytes times":
        return BYTES[rng.integers(0, 127, shape)] * units
    if kind == "bytes over":
        return BYTES[rng.integers(0, 127, shape)] / np.float32(1234.567)
    return free


def weight_with(layout, kind):
    known = LAYOUTS[layout]
    shape = (ROWS, COLUMNS // known.block, known.block_bytes)
    raw = np.random.default_rng(4).integers(0, 256, shape, np.uint8)
    if layout == "e4m3b32":
        raw &= 0xFE  # without its NaN
    scale = group_scales(kind, shape[:2])
    for at, factor in zip(known.scales_at, (1, -7), strict=False):
        raw[..., at : at + 4] = (scale * np.float32(factor))[..., None].view(np.uint8)
    return Weight.from_bytes(known, raw.reshape(ROWS, -1), (ROWS, COLUMNS))


@pytest.mark.parametrize(
    ("layout", "kind", "bits"),
    [
        ("i4b32", "f16 of 128", 4.2), ("i4b32m", "f16 of 128", 4.5), ("i4b32", "free", 5.1),
        ("i8b32m", "f16 of 128", 8.6), ("nf4b32", "bf16", 8.8), ("e4m3b32", "f16 of 128", 8.3),
        ("e2m1b16", "bytes times", 5.1), ("e2m1b16", "bytes over", 5.1), ("e2m1b16", "free", 6.2),
    ],
)  # fmt: skip
def test_scales_are_held_as_small_as_they_are_and_change_no_bit(layout, kind, bits):
    weight = weight_with(layout, kind)
    packed = pack(weight, "weight", "cpu")
    assert packed.nbytes * 8 / (ROWS * packed.padded) <= bits
    x = np.random.default_rng(5).standard_normal((12, COLUMNS)).astype(np.float32)
    defined = matmul.matmul(quantise.quantise_rows(x), decode(weight))
    for rows in (1, 12):
        faults = torch.zeros(rows, dtype=torch.int32)
        got = products.product(
            packed, quantise_rows(torch.tensor(x[:rows])), rows, faults, Stack(PLAIN, ROWS)
        )
        assert (got.numpy().view(np.uint32) == defined[:rows].view(np.uint32)).all()
    ids = torch.tensor([3, 11], dtype=torch.int32)
    found = products.look_up(packed, ids, torch.zeros(2, dtype=torch.int32)).numpy()
    assert (found == weight_values(weight, "weight")[[3, 11]]).all()


def test_scales_are_taken_apart_exactly_or_not_at_all():
    many = np.tile(BYTES, (200, 1))
    units = np.repeat(np.float32([3e-2, 0.7, 1.1]), (70, 1, 129))[:, None]
    for scales in (many * units, many / units, many[:, :1] * units):
        found, factors = e4m3_scales(scales)
        number = BYTES.astype(np.float64)[found]
        upper, lower = np.ldexp(factors.astype(np.float64).T[:, :, None], -RAISED)
        once = (number * upper).astype(np.float32)
        assert (once == number * upper).all()
        assert ((number * lower + once).astype(np.float32) == scales).all()
    off = many * units
    off[150, 60] = np.nextafter(off[150, 60], np.float32(1))
    assert e4m3_scales(off) is None  # an ulp beside what the byte's like make
    assert e4m3_scales(-many) is None
    assert e4m3_scales(many * np.float32(200)) is None  # past what float32 factors hold
    assert e4m3_scales(np.random.default_rng(1).uniform(1, 2, (4, 64)).astype(np.float32)) is None
