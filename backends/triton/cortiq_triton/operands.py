"""Operands of products of many rows as `hopper` reads them: 256 columns of a tile of rows together,
in pieces of 32 columns; codes with their sub-scales multiplied in.

    codes    int8 [tiles of 128 rows, K/256, planes, 8, 128, 32]
    facts    int32 [tiles, K/256, n, 128]: the bits of the scales of 256 columns, then those of the
             minima, then offsets, four a word; n is a power of two
    rows     int8 [tiles of 64 rows, K/256, 8, planes, 64, 32]
    sums     int32 [tiles, K/256, n, 64]: the bits of RN(Σq) of 32 columns, or beside offsets for
             four sub-blocks at a time Σq = 256·high + low, as two words of 16-bit and one of bytes

K is rounded up to 256 columns; what is there beyond the end is zero and adds +0.
"""

from __future__ import annotations

import torch
import triton.language as tl

from cortiq_triton.e2m1 import e2m1_integer
from cortiq_triton.host_codes import NIBBLES
from cortiq_triton.language import Tensor, ceil_div, device, kernel, launch, pow2
from cortiq_triton.matvec import load_scale
from cortiq_triton.packing import bits_byte, nibble_byte
from cortiq_triton.rows import Rows
from cortiq_triton.weights import Packed, block_constants

DOWN, ACROSS = 128, 64
"""Rows of the weight and rows of x in a tile."""
ROWS = 32
"""Rows that a program puts in place."""


@device
def half_codes(
    codes: Tensor, bits: Tensor, sub_scales: Tensor, row: Tensor, unit: Tensor, half: Tensor,
    K: Tensor, NIBBLES: tl.constexpr, SUB: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr,
    E2M1: tl.constexpr, HIGH: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Codes times their sub-scales, int32 [halves, 16], of the first or the last 16 columns of
    units of 32.
    """
    j = tl.arange(0, 16)[None, :]
    row, unit, half = row[:, None], unit[:, None], half[:, None]
    inside = (unit * 32 < K) & (j >= 0)
    if NIBBLES:
        byte, shift = nibble_byte(unit * 32 + half * 16 + j, E2M1)
        packed = tl.load(codes + row * (K // 2) + byte, mask=inside, other=0)
        code = (packed.to(tl.int32) >> shift) & 15
        if HIGH:
            byte, first = bits_byte(j + 16 * half, HIGH)
            byte += unit * (4 * HIGH)
            above = tl.load(bits + row * (K // 8 * HIGH) + byte, mask=inside, other=0)
            code |= ((above.to(tl.int32) >> first) & (2 * HIGH - 1)) << 4
        if E2M1:
            code = e2m1_integer(code)
        code = tl.where(inside, code - BIAS, 0)
    else:
        at = row * K + unit * 32 + 16 * half + j
        code = tl.load(codes + at, mask=inside, other=0).to(tl.int32)
    if SCALED:
        sub = unit if SUB == 32 else unit * 2 + half
        scale = tl.load(sub_scales + row * (K // SUB) + sub, mask=unit * 32 < K, other=0)
        code *= scale.to(tl.int32)
    return code


@kernel
def lay_weight(
    codes: Tensor, bits: Tensor, scale: Tensor, minimum: Tensor, sub_scales: Tensor,
    offsets: Tensor, laid: Tensor, facts: Tensor, first: Tensor, N: Tensor, K: Tensor,
    runs: Tensor, blocks: Tensor, NIBBLES: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    SUB: tl.constexpr, SCALED: tl.constexpr, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr,
    BIAS: tl.constexpr, E2M1: tl.constexpr, HIGH: tl.constexpr, FORM: tl.constexpr,
    LOW_FORM: tl.constexpr, SHARE: tl.constexpr, PLANES: tl.constexpr, WORDS: tl.constexpr,
    FACTS: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """256 columns of some rows of a weight, from row `first` on."""
    top, run = tl.program_id(0) * ROWS, tl.program_id(1)
    e = tl.arange(0, ROWS * 16)  # halves of a row's 32 columns, then rows: neighbours in memory
    n, step, half = top + e // 2 % ROWS, e // (2 * ROWS), e % 2
    row = tl.minimum(first + n, N - 1).to(tl.int64)
    piece = (n // 128).to(tl.int64) * runs + run
    spot = piece * (32768 * PLANES) + step * 4096 + n % 128 * 32 + half * 16
    spot = spot[:, None] + tl.arange(0, 16)[None, :]
    code = half_codes(
        codes, bits, sub_scales, row, run * 8 + step, half, K, NIBBLES, SUB, SCALED, BIAS, E2M1,
        HIGH,
    )  # fmt: skip
    if PLANES == 2:
        high = (code + 128) >> 8
        tl.store(laid + spot, high.to(tl.int8))
        code -= high << 8
    tl.store(laid + spot + (PLANES - 1) * 32768, code.to(tl.int8))
    n = top + tl.arange(0, ROWS)
    row = tl.minimum(first + n, N - 1).to(tl.int64)
    piece, place = (n // 128).to(tl.int64) * runs + run, n % 128
    COUNT: tl.constexpr = 256 // BLOCK
    block = (run * COUNT + tl.arange(0, COUNT)) // SHARE
    known, at = (block < blocks)[None, :], row[:, None] * blocks + block[None, :]
    spot = (piece[:, None] * FACTS + tl.arange(0, COUNT)[None, :]) * 128 + place[:, None]
    tl.store(facts + spot, load_scale(scale, at, known, FORM).to(tl.int32, bitcast=True))
    if MINIMUM:
        least = load_scale(minimum, at, known, LOW_FORM).to(tl.int32, bitcast=True)
        tl.store(facts + spot + COUNT * 128, least)
    if OFFSETS:
        word = tl.arange(0, WORDS)[None, :]
        found = tl.load(offsets + (row[:, None] * runs + run) * WORDS + word)
        at = (piece[:, None] * FACTS + 2 + word) * 128 + place[:, None]
        tl.store(facts + at, found)


@device
def sub_sums(sums: Tensor, x: Tensor, sub: Tensor, K: Tensor, SUB: tl.constexpr) -> Tensor:
    """Σq of sub-blocks of 16 or 32 columns, int32 [rows, subs]; 0 past the end."""
    width = K // 16
    at, inside = x[:, None] * width + sub * (SUB // 16), sub * SUB < K
    found = tl.load(sums + at, mask=inside, other=0)
    if SUB == 32:
        found += tl.load(sums + at + 1, mask=inside, other=0)
    return found


@kernel
def lay_rows(
    qh: Tensor, ql: Tensor, sums: Tensor, laid: Tensor, laid_sums: Tensor, M: Tensor, K: Tensor,
    runs: Tensor, MINIMUM: tl.constexpr, SUB: tl.constexpr, WORDS: tl.constexpr,
    SUMS: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """256 columns of some quantised rows. MINIMUM 1: sums of 32 as floats; 2: sums as words."""
    m, run = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    x, place = tl.minimum(m, M - 1).to(tl.int64), m % 64
    piece, column = (m // 64).to(tl.int64) * runs + run, tl.arange(0, 256)
    k = run * 256 + column
    inside, at = (k < K)[None, :], x[:, None] * K + k[None, :]
    spot = (column // 32 * 4096 + column % 32)[None, :] + (piece * 32768 + place * 32)[:, None]
    tl.store(laid + spot, tl.load(qh + at, mask=inside, other=0))
    tl.store(laid + spot + 2048, tl.load(ql + at, mask=inside, other=0))
    if MINIMUM == 1:
        sub = tl.arange(0, 8)[None, :]
        found = sub_sums(sums, x, run * 8 + sub, K, 32)
        found = found.to(tl.float32).to(tl.int32, bitcast=True)
        tl.store(laid_sums + (piece[:, None] * SUMS + sub) * 64 + place[:, None], found)
    if MINIMUM == 2:
        word = tl.arange(0, WORDS)[None, :]
        spot = (piece[:, None] * SUMS + word * 3) * 64 + place[:, None]
        tail = word * 0
        for pair in tl.static_range(2):
            sub = (run * WORDS + word) * 4 + pair * 2
            one, two = sub_sums(sums, x, sub, K, SUB), sub_sums(sums, x, sub + 1, K, SUB)
            high_one, high_two = (one + 128) >> 8, (two + 128) >> 8
            tl.store(laid_sums + spot + pair * 64, (high_one & 65535) | (high_two << 16))
            low = (one & 255) | ((two & 255) << 8)
            tail = tail | (low << (16 * pair))
        tl.store(laid_sums + spot + 128, tail)


def words_of(weight: Packed) -> int:
    """Words of the offsets of a block."""
    return 0 if weight.offsets is None else 64 // weight.sub


def facts_of(weight: Packed) -> int:
    """Words of a row of the weight beside 256 columns of its codes, as many as a power of two."""
    return pow2(256 // weight.block * (1 + (weight.minimum is not None)) + words_of(weight))


def sums_of(weight: Packed) -> int:
    """Words of a row of x beside 256 columns of it, as many as a power of two; 0 for none."""
    if weight.minimum is None:
        return 0
    return 8 if weight.offsets is None else pow2(3 * words_of(weight))


def laid_bytes(weight: Packed, rows: int) -> int:
    """Memory for so many rows of a weight."""
    each = 256 * weight.folded + 4 * facts_of(weight)
    return ceil_div(rows, DOWN) * DOWN * ceil_div(weight.padded, 256) * each


def lay_weight_rows(weight: Packed, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and facts of rows of a weight from `first` on, a multiple of 128."""
    runs, planes, facts = ceil_div(weight.padded, 256), weight.folded, facts_of(weight)
    tiles, device = ceil_div(count, DOWN), weight.codes.device
    codes = torch.empty(tiles * runs * planes * 32768, dtype=torch.int8, device=device)
    beside = torch.empty(tiles * runs * facts * DOWN, dtype=torch.int32, device=device)
    optional = (weight.bits, weight.minimum, weight.sub_scales)
    bits, *parts = (weight.codes if part is None else part for part in optional)
    offsets = weight.codes if weight.offsets is None else weight.offsets.view(torch.int32)
    launch(
        lay_weight, (tiles * DOWN // ROWS, runs), weight.codes, bits, weight.scale, *parts,
        offsets, codes, beside, first, weight.height, weight.padded, runs, weight.blocks,
        NIBBLES=weight.kind == NIBBLES, **block_constants(weight), PLANES=planes,
        WORDS=max(1, words_of(weight)), FACTS=facts, ROWS=ROWS,
    )  # fmt: skip
    return codes, beside


def lay_quantised(weight: Packed, x: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantised rows in tiles, and their sums as the minima of a format want them."""
    count, padded, each = x.e.numel(), weight.padded, sums_of(weight)
    runs, tiles, device = ceil_div(padded, 256), ceil_div(count, ACROSS), x.high.device
    laid = torch.empty(tiles * runs * 32768, dtype=torch.int8, device=device)
    sums = torch.empty(tiles * runs * max(1, each) * ACROSS, dtype=torch.int32, device=device)
    minimum = 0 if not each else 1 if weight.offsets is None else 2
    launch(
        lay_rows, (tiles * ACROSS // ROWS, runs), x.high, x.low, x.sums, laid, sums, count, padded,
        runs, MINIMUM=minimum, SUB=weight.sub or 32, WORDS=max(1, words_of(weight)),
        SUMS=max(1, each), ROWS=ROWS,
    )  # fmt: skip
    return laid, sums
