"""CMF's encodings decoded value by value in float64, from the text of the format; nothing of ours.

`BY_HAND[name](raw, rows, columns)` gives every value as a Python float, before any rounding to
float32 but for the ladders, whose rungs are float32 products by definition.
"""

from __future__ import annotations

import math
import struct

import numpy as np


def half(raw, at):
    """The f16 at a byte."""
    bits = raw[at] | raw[at + 1] << 8
    sign, exponent, mantissa = -1.0 if bits >> 15 else 1.0, bits >> 10 & 31, bits & 1023
    assert exponent < 31
    if exponent == 0:
        return sign * mantissa * 2.0**-24
    return sign * (1024 + mantissa) * 2.0 ** (exponent - 25)


def word(raw, at):
    """The u32 at a byte."""
    return struct.unpack_from("<I", raw, at)[0]


def single(x):
    """A float64 rounded to float32."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def ladder(raw, at, zero_first):
    """32 rungs: 2^lo, then times 2^step, each rounded to float32."""
    scale, ratio = single(2.0 ** half(raw, at)), single(2.0 ** half(raw, at + 2))
    rungs = [0.0] if zero_first else []
    while len(rungs) < 32:
        rungs.append(scale)
        scale = single(scale * ratio)
    return rungs


def bits_of(raw, first, count):
    """A number of `count` bits from bit `first` on, the lowest first."""
    return sum((raw[(first + k) // 8] >> (first + k) % 8 & 1) << k for k in range(count))


def q8_row(raw, rows, columns):
    scale = [half(raw, rows * columns + 2 * r) for r in range(rows)]
    signed = [b - 256 if b > 127 else b for b in raw[: rows * columns]]
    return [signed[i] * scale[i // columns] for i in range(rows * columns)]


def q8_2f(raw, rows, columns):
    at = rows * (columns + 2)
    plain = q8_row(raw, rows, columns)
    return [single(v) * half(raw, at + 2 * (i % columns)) for i, v in enumerate(plain)]


def q4_block(raw, rows, columns):
    groups = -(-rows * columns // 32)
    nibble = [raw[i // 2] >> 4 * (i % 2) & 15 for i in range(rows * columns)]
    return [(n - 8) * half(raw, 16 * groups + 2 * (i // 32)) for i, n in enumerate(nibble)]


def q4_tiled(raw, rows, columns):
    found = []
    for g in range(rows * columns // 32):
        tile = raw[18 * g : 18 * g + 18]
        found += [((tile[2 + k // 2] >> 4 * (k % 2) & 15) - 8) * half(tile, 0) for k in range(32)]
    return found


def laddered(raw, rows, columns, plane):
    groups = columns // 32
    params, codes = plane * rows * groups, plane * rows * groups + 4 * rows
    stride, found = -(-5 * groups // 8), []
    for r in range(rows):
        rungs = ladder(raw, params + 4 * r, plane == 8)
        for g in range(groups):
            scale = rungs[bits_of(raw[codes + r * stride : codes + (r + 1) * stride], 5 * g, 5)]
            tile = raw[plane * (r * groups + g) : plane * (r * groups + g + 1)]
            for k in range(32):
                code = bits_of(tile, 4 * k, 4) - 8 if plane == 16 else bits_of(tile, 2 * k, 2) - 1.5
                found.append(code * scale)
    return found


def q1(raw, rows, columns, size=6):
    found = []
    for g in range(rows * columns // 32):
        tile = raw[size * g : size * g + size]
        found += [half(tile, 0) * (1 if tile[2 + k // 8] >> k % 8 & 1 else -1) for k in range(32)]
    return found


def q1s(raw, rows, columns):
    found, at = q1(raw, rows, columns), 6 * (rows * columns // 32)
    for n in range(word(raw, at)):
        found[word(raw, at + 4 + 6 * n)] = half(raw, at + 8 + 6 * n)
    return found


def q1t(raw, rows, columns):
    found = []
    for g in range(rows * columns // 32):
        tile = raw[9 * g : 9 * g + 9]
        digits = [tile[2 + k // 5] // 3 ** (k % 5) % 3 for k in range(32)]
        found += [(0.0, 1.0, -1.0)[d] * half(tile, 0) if d else 0.0 for d in digits]
    starts = 9 * (rows * columns // 32)
    entries = starts + 4 * (rows + 1)
    for r in range(rows):
        for n in range(word(raw, starts + 4 * r), word(raw, starts + 4 * r + 4)):
            column = raw[entries + 4 * n] | raw[entries + 4 * n + 1] << 8
            found[r * columns + column] = half(raw, entries + 4 * n + 2)
    return found


def vbit(raw, rows, columns, offsets=False):
    groups, found = columns // 32, []
    at = rows + 2 * rows * groups + (4 * (rows + 1) if offsets else 0)
    for r in range(rows):
        width = raw[r]
        size = math.ceil(columns * width / 8)
        bits = "".join(f"{byte:08b}" for byte in raw[at : at + size])
        for c in range(columns):
            code = int(bits[c * width : (c + 1) * width], 2) - (2 ** (width - 1) - 1)
            found.append(code * half(raw, rows + 2 * (r * groups + c // 32)))
        at += size
    return found


BY_HAND = {
    "f32": lambda raw, rows, columns: list(struct.unpack(f"<{rows * columns}f", raw)),
    "f16": lambda raw, rows, columns: [half(raw, 2 * i) for i in range(rows * columns)],
    "bf16": lambda raw, rows, columns: [
        struct.unpack("<f", b"\0\0" + raw[2 * i : 2 * i + 2])[0] for i in range(rows * columns)
    ],
    "q8_row": q8_row, "q8_2f": q8_2f, "q4_block": q4_block, "q4_tiled": q4_tiled,
    "q4tp": lambda raw, rows, columns: laddered(raw, rows, columns, 16),
    "q2tp": lambda raw, rows, columns: laddered(raw, rows, columns, 8),
    "q1": q1, "q1s": q1s, "q1t": q1t, "vbit": vbit,
    "vbit_ro": lambda raw, rows, columns: vbit(raw, rows, columns, True),
}  # fmt: skip


def half_bytes(rng, count):
    """Random finite f16, subnormal ones and zeros among them."""
    bits = rng.integers(0, 1 << 16, count).astype("<u2")
    bits = np.where(bits >> 10 & 31 == 31, bits & 0x83FF | 0x3C00, bits)
    return bits.astype("<u2").tobytes()


def random_payload(name, rng, rows, columns):
    """Valid random bytes of an encoding."""
    n, groups = rows * columns, rows * columns // 32
    if name in ("f32", "bf16"):
        values = rng.standard_normal(n).astype("<f4")
        return values.tobytes() if name == "f32" else values.view("<u2")[1::2].tobytes()
    if name == "f16":
        return half_bytes(rng, n)
    if name in ("q8_row", "q8_2f"):
        factors = half_bytes(rng, rows + (columns if name == "q8_2f" else 0))
        return rng.bytes(n) + factors
    if name == "q4_block":
        return rng.bytes(16 * -(-n // 32)) + half_bytes(rng, -(-n // 32))
    if name in ("q4tp", "q2tp"):
        low = rng.uniform(-20, 4, rows).astype("<f2")
        step = rng.uniform(0, 1.5, rows).astype("<f2")
        pairs = np.stack([low, step], axis=1).tobytes()
        plane = 16 if name == "q4tp" else 8
        return rng.bytes(plane * groups) + pairs + rng.bytes(rows * -(-5 * (columns // 32) // 8))
    if name in ("vbit", "vbit_ro"):
        widths = rng.choice([3, 4, 5, 6, 8], rows)
        sizes = [math.ceil(columns * int(w) / 8) for w in widths]
        ends = np.cumsum([0, *sizes]).astype("<u4").tobytes() if name == "vbit_ro" else b""
        head = widths.astype(np.uint8).tobytes() + half_bytes(rng, groups) + ends
        return head + rng.bytes(sum(sizes))
    return _tiles(name, rng, rows, columns)


def _tiles(name, rng, rows, columns):
    groups, size = rows * columns // 32, {"q4_tiled": 16, "q1": 4, "q1s": 4, "q1t": 7}[name]
    inside = rng.integers(0, 243, (groups, 7)) if name == "q1t" else None
    found = b""
    for g in range(groups):
        packed = rng.bytes(size) if inside is None else inside[g].astype(np.uint8).tobytes()
        found += half_bytes(rng, 1) + packed
    if name == "q1s":
        where = np.sort(rng.choice(rows * columns, 5, replace=False))
        found += struct.pack("<I", 5)
        return found + b"".join(struct.pack("<I", w) + half_bytes(rng, 1) for w in where)
    if name == "q1t":
        counts = rng.integers(0, 3, rows)
        found += np.cumsum([0, *counts]).astype("<u4").tobytes()
        for count in counts:
            for column in np.sort(rng.choice(columns, count, replace=False)):
                found += struct.pack("<H", column) + half_bytes(rng, 1)
    return found
