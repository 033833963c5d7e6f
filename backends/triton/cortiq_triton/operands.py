"""Operands of products of many rows as `hopper` reads them: 256 columns of a tile of rows together,
in pieces of 32 columns; codes with their sub-scales multiplied in.

    weight   int8 [tiles of 128 rows, K/256, planes, 8, 128, 32]
    scale, minimum   float32 [tiles, blocks, 128]
    offsets  int32 [tiles, K/256, words, 128]: four a word
    rows     int8 [tiles of 64 rows, K/256, 8, planes, 64, 32]
    sums     float32 [tiles, blocks, 64], or int32 [tiles, K/256, words, 3, 64] beside offsets:
             Σq = 256·high + low of four sub-blocks as two pairs of 16 bits and four of 8

K is rounded up to 256 columns; what is there beyond the end is zero and adds +0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from cortiq_triton.language import Tensor, ceil_div, device, kernel, launch
from cortiq_triton.matvec import load_scale
from cortiq_triton.rows import Rows
from cortiq_triton.weights import NIBBLES, Packed, block_constants

DOWN, ACROSS = 128, 64
"""Rows of the weight and rows of x in a tile."""
ROWS = 32
"""Rows that a program puts in place."""


@device
def folded_codes(
    codes: Tensor, sub_scales: Tensor, row: Tensor, k: Tensor, K: Tensor, NIBBLES: tl.constexpr,
    SUB: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Codes times their sub-scales, int32 [rows, columns]; 0 past the end."""
    inside = (k < K)[None, :]
    if NIBBLES:
        byte = k // 32 * 16 + k % 16
        packed = tl.load(codes + row[:, None] * (K // 2) + byte[None, :], mask=inside, other=0)
        code = ((packed.to(tl.int32) >> (k // 16 % 2 * 4)[None, :]) & 15) - BIAS
        code = tl.where(inside, code, 0)
    else:
        code = tl.load(codes + row[:, None] * K + k[None, :], mask=inside, other=0).to(tl.int32)
    if SCALED:
        at = row[:, None] * (K // SUB) + (k // SUB)[None, :]
        code *= tl.load(sub_scales + at, mask=inside, other=0).to(tl.int32)
    return code


@kernel
def lay_weight(
    codes: Tensor, scale: Tensor, minimum: Tensor, sub_scales: Tensor, offsets: Tensor,
    laid: Tensor, laid_scale: Tensor, laid_minimum: Tensor, laid_offsets: Tensor, first: Tensor,
    N: Tensor, K: Tensor, runs: Tensor, blocks: Tensor, NIBBLES: tl.constexpr, BLOCK: tl.constexpr,
    SUB: tl.constexpr, SCALED: tl.constexpr, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr,
    BIAS: tl.constexpr, FORM: tl.constexpr, LOW_FORM: tl.constexpr, PLANES: tl.constexpr,
    WORDS: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """256 columns of some rows of a weight, from row `first` on."""
    n, run = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    row = tl.minimum(first + n, N - 1).to(tl.int64)
    piece, place, column = (n // 128).to(tl.int64) * runs + run, n % 128, tl.arange(0, 256)
    code = folded_codes(codes, sub_scales, row, run * 256 + column, K, NIBBLES, SUB, SCALED, BIAS)
    spot = (column // 32 * 4096 + column % 32)[None, :] + place[:, None] * 32
    if PLANES == 2:
        high = (code + 128) >> 8
        tl.store(laid + piece[:, None] * 65536 + spot, high.to(tl.int8))
        code -= high << 8
        spot += 32768
    tl.store(laid + piece[:, None] * (32768 * PLANES) + spot, code.to(tl.int8))
    COUNT: tl.constexpr = 256 // BLOCK
    block = run * COUNT + tl.arange(0, COUNT)
    known, at = (block < blocks)[None, :], row[:, None] * blocks + block[None, :]
    spot = (piece[:, None] * COUNT + tl.arange(0, COUNT)[None, :]) * 128 + place[:, None]
    tl.store(laid_scale + spot, load_scale(scale, at, known, FORM))
    if MINIMUM:
        tl.store(laid_minimum + spot, load_scale(minimum, at, known, LOW_FORM))
    if OFFSETS:
        word = tl.arange(0, WORDS)[None, :]
        found = tl.load(offsets + (row[:, None] * runs + run) * WORDS + word)
        tl.store(laid_offsets + (piece[:, None] * WORDS + word) * 128 + place[:, None], found)


@device
def sub_sums(
    sums: Tensor, x: Tensor, sub: Tensor, K: Tensor, SUB: tl.constexpr
) -> Tensor:
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
    ROWS: tl.constexpr,
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
        tl.store(laid_sums + (piece[:, None] * 8 + sub) * 64 + place[:, None], found.to(tl.float32))
    if MINIMUM == 2:
        word = tl.arange(0, WORDS)[None, :]
        spot = (piece[:, None] * WORDS + word) * 192 + place[:, None]
        tail = word * 0
        for pair in tl.static_range(2):
            sub = (run * WORDS + word) * 4 + pair * 2
            one, two = sub_sums(sums, x, sub, K, SUB), sub_sums(sums, x, sub + 1, K, SUB)
            high_one, high_two = (one + 128) >> 8, (two + 128) >> 8
            tl.store(laid_sums + spot + pair * 64, (high_one & 65535) | (high_two << 16))
            low = (one & 255) | ((two & 255) << 8)
            tail = tail | (low << (16 * pair))
        tl.store(laid_sums + spot + 128, tail)


@dataclass
class LaidWeight:
    """Rows of a weight in tiles. planes : of the codes. words : of a block's offsets, 0 for none.

    codes, scale, minimum, offsets : as the module describes them; what is not there is `scale`.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor
    offsets: torch.Tensor
    planes: int
    words: int


def words_of(weight: Packed) -> int:
    """Words of the offsets of a block."""
    return 0 if weight.offsets is None else 64 // weight.sub


def laid_bytes(weight: Packed, rows: int) -> int:
    """Memory for so many rows of a weight, about."""
    return rows * ceil_div(weight.padded, 256) * (256 * weight.folded + 64)


def lay_weight_rows(weight: Packed, first: int, count: int) -> LaidWeight:
    """Rows of a weight from `first` on, a multiple of 128, in tiles."""
    runs, planes, words = ceil_div(weight.padded, 256), weight.folded, words_of(weight)
    tiles, device = ceil_div(count, DOWN), weight.codes.device
    codes = torch.empty(tiles * runs * planes * 32768, dtype=torch.int8, device=device)
    scale = torch.empty(tiles * runs * (256 // weight.block) * 128, device=device)
    minimum = scale if weight.minimum is None else torch.empty_like(scale)
    offsets, given = scale, weight.codes
    if weight.offsets is not None:
        given = weight.offsets.view(torch.int32)
        offsets = torch.empty(tiles * runs * words * 128, dtype=torch.int32, device=device)
    optional = (weight.minimum, weight.sub_scales)
    parts = (weight.codes if part is None else part for part in optional)
    launch(
        lay_weight, (tiles * DOWN // ROWS, runs), weight.codes, weight.scale, *parts, given, codes,
        scale, minimum, offsets, first, weight.height, weight.padded, runs, weight.blocks,
        NIBBLES=weight.kind == NIBBLES, **block_constants(weight), PLANES=planes,
        WORDS=max(1, words), ROWS=ROWS,
    )  # fmt: skip
    return LaidWeight(codes, scale, minimum, offsets, planes, words)


def lay_quantised(weight: Packed, x: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantised rows in tiles, and their sums as a format with minima wants them (else the rows)."""
    count, padded = x.e.numel(), weight.padded
    runs, tiles, words = ceil_div(padded, 256), ceil_div(count, ACROSS), words_of(weight)
    device = x.high.device
    laid = torch.empty(tiles * runs * 32768, dtype=torch.int8, device=device)
    sums, minimum = laid, 0
    if weight.minimum is not None:
        minimum = 1 if weight.offsets is None else 2
        each, kind = (8, torch.float32) if minimum == 1 else (words * 3, torch.int32)
        sums = torch.empty(tiles * runs * each * 64, dtype=kind, device=device)
    launch(
        lay_rows, (tiles * ACROSS // ROWS, runs), x.high, x.low, x.sums, laid, sums, count, padded,
        runs, MINIMUM=minimum, SUB=weight.sub or 32, WORDS=max(1, words), ROWS=ROWS,
    )  # fmt: skip
    return laid, sums
