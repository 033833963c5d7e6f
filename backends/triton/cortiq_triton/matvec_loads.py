"""Reads of weights in blocks by products of few rows: units of 32 columns, a lane's share each."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import INTERPRETED, Tensor, device


@device
def as_it_is(x: Tensor) -> Tensor:
    """x, for the interpreter."""
    return x


@device
def alone_instruction(x: Tensor) -> Tensor:
    """x, about which the compiler knows nothing: what is loaded there is loaded one by one, each
    value by the lane that needs it, instead of many by one lane that hands them on.
    """
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
    )


alone = as_it_is if INTERPRETED else alone_instruction


@device
def halves_of(words: Tensor, unit: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last 16 bytes of units of 32, words [T, .., 4] each."""
    at = unit[:, None, None] * 8 + tl.arange(0, 4)[None, None, :]
    return tl.load(words + at, mask=mask, other=0), tl.load(words + at + 4, mask=mask, other=0)


@device
def codes_at(
    codes: Tensor, unit: Tensor, more: Tensor, NIBBLES: tl.constexpr
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Words of units, as they lie in memory; of nibbles, the same twice."""
    if NIBBLES:
        at = unit[:, None, None] * 4 + tl.arange(0, 4)[None, None, :]
        first = tl.load(codes + at, mask=more[:, None, None], other=0)
        second = first
    else:
        first, second = halves_of(codes, unit, more[:, None, None])
    return first, second


@device
def bits_at(bits: Tensor, unit: Tensor, more: Tensor, HIGH: tl.constexpr) -> tuple[Tensor, Tensor]:
    """Words of the bits above the nibbles of the first and the last 16 columns, [T, BN] each."""
    if HIGH == 1:
        first = tl.load(bits + alone(unit)[:, None], mask=more[:, None], other=0)
        second = first
    else:
        at = bits[:, :, None] + unit[:, None, None] * 2 + tl.arange(0, 2)[None, None, :]
        first, second = tl.split(tl.load(at, mask=more[:, None, None], other=0))
    return first, second


@device
def factors_at(
    table: Tensor, unit: Tensor, more: Tensor, SUB: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """Sub-scales or offsets of the first and the last 16 columns of units, [T, BN] each."""
    if SUB == 32:
        first = tl.load(table + alone(unit)[:, None], mask=more[:, None], other=0)
        second = first
    else:
        at = table + unit[:, None] * 2
        first = tl.load(at, mask=more[:, None], other=0)
        second = tl.load(at + 1, mask=more[:, None], other=0)
    return first, second


@device
def scales_at(
    table: Tensor, row: Tensor, top: Tensor, last: Tensor, start: Tensor, units: Tensor,
    blocks: Tensor, BLOCK: tl.constexpr, SHARE: tl.constexpr, BN: tl.constexpr, T: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Scales of units, [T, BN], [2T, BN] for blocks of 16; of 256, one a block, [BN·T/8]."""
    if BLOCK <= 32:
        EACH: tl.constexpr = 32 // BLOCK
        block = (start * EACH + tl.arange(0, T * EACH)) // SHARE
        at = row[None, :] * blocks + alone(block)[:, None]
        seen = (block < blocks)[:, None]
    else:
        e = tl.arange(0, BN * T // 8)
        block = start // 8 + e % (T // 8)
        at = tl.minimum(top + e // (T // 8), last).to(tl.int64) * blocks + block
        seen = block < blocks
    return tl.load(table + at, mask=seen, other=0)


@device
def interleaved(first: Tensor, second: Tensor, BN: tl.constexpr, T: tl.constexpr) -> Tensor:
    """Halves of units in order: [T, BN] each to [2T, BN]."""
    return tl.reshape(tl.permute(tl.join(first, second), (0, 2, 1)), (2 * T, BN))


@device
def byte_pairs_at(
    table: Tensor, row: Tensor, unit: Tensor, more: Tensor, units: Tensor, BN: tl.constexpr,
    T: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Scales that are bytes, of both halves of units: int32 [2T, BN]; a word of 16 bits is two."""
    pair = tl.load(table + row[None, :] * units + alone(unit)[:, None], mask=more[:, None], other=0)
    pair = pair.to(tl.int32)
    return interleaved(pair & 255, (pair >> 8) & 255, BN, T)


@device
def step_at(
    codes: Tensor, bits: Tensor, scale: Tensor, minimum: Tensor, sub_scales: Tensor,
    offsets: Tensor, row: Tensor, top: Tensor, last: Tensor, start: Tensor, units: Tensor,
    blocks: Tensor, NIBBLES: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr,
    SUB: tl.constexpr, SCALED: tl.constexpr, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr,
    SHARE: tl.constexpr, FORM: tl.constexpr, EVEN: tl.constexpr, BN: tl.constexpr,
    T: tl.constexpr,
) -> tuple[Tensor, ...]:  # fmt: skip
    """T units of BN rows from `start` on, as they lie in memory; words stand in for what is not.

    Units past a row's end are zeros.
    """
    unit = start + tl.arange(0, T)
    more = tl.full((T,), start, tl.int32) < units if EVEN else unit < units
    first, second = codes_at(codes[None, :, None], unit, more, NIBBLES)
    above, above_second = first, first
    if HIGH:
        above, above_second = bits_at(bits[None, :], unit, more, HIGH)
    if FORM == 3:
        d = byte_pairs_at(scale, row, unit, more, units, BN, T)
    else:
        d = scales_at(scale, row, top, last, start, units, blocks, BLOCK, SHARE, BN, T)
    least = d
    if MINIMUM:
        least = scales_at(minimum, row, top, last, start, units, blocks, BLOCK, SHARE, BN, T)
    by, by_second, off, off_second = first, first, first, first
    if SCALED:
        by, by_second = factors_at(sub_scales[None, :], unit, more, SUB)
    if OFFSETS:
        off, off_second = factors_at(offsets[None, :], unit, more, SUB)
    return first, second, above, above_second, d, least, by, by_second, off, off_second
