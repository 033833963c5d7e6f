"""Sizes of the tiles of products."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq_triton.language import INTERPRETED


@dataclass(frozen=True)
class Tuning:
    """Sizes of tiles; none changes a bit.

    Attributes
    ----------
    few : rows up to which weights are read as words, one program for `rows` of them.
    grouped : rows an expert, on average, from which on they are grouped.
    bn, bw : weight rows and words of such a program.
    bn_blocked, span : weight rows of a program for formats in blocks, and how many times 32 columns
        of them it has at a time, one a lane: 32 or more. bn_e2m1 : rows of E2M1.
    bm, bn_many, bk, group : tiles of the tensor cores' product.
    some : rows up to which tiles are `bn_some` columns wide and `bk_some` deep: weights must reach
        all processors.
    bm_blocks, bn_blocks : tiles of formats in blocks, which keep more sums in registers; `turn`
        times 32 columns a turn of their loop, 2, 4 or 8.
    special : whether kernels of one device alone are used, there. laid : rows from which on theirs
        for formats in blocks are.
    """

    few: int = 8
    rows: int = 1
    grouped: int = 2
    bn: int = 4
    bw: int = 512
    bn_blocked: int = 4
    bn_e2m1: int = 8
    span: int = 64
    warps: int = 4
    bm: int = 128
    bn_many: int = 128
    bk: int = 128
    group: int = 8
    warps_many: int = 8
    some: int = 64
    bn_some: int = 32
    bk_some: int = 256
    warps_some: int = 4
    bm_blocks: int = 64
    bn_blocks: int = 64
    warps_blocks: int = 4
    turn: int = 2
    laid: int = 96
    special: bool = True
    stages_blocks: int = 3
    stages: int = 3
    stages_some: int = 4


DEVICE_TUNING = Tuning()
INTERPRETER_TUNING = Tuning(
    some=0, few=2, rows=2, bn=1024, bw=256, bn_blocked=512, bn_e2m1=512, span=64, bm=64,
    bn_many=4096, bm_blocks=64, bn_blocks=4096,
)  # fmt: skip
"""Few programs of much work each, of at most `language.LARGEST_TILE` elements."""
_tuning = [INTERPRETER_TUNING if INTERPRETED else DEVICE_TUNING]


def tuning() -> Tuning:
    """The sizes in use."""
    return _tuning[0]


def use_tuning(chosen: Tuning) -> Tuning:
    """Use other sizes from now on; returns those before."""
    before, _tuning[0] = _tuning[0], chosen
    return before
