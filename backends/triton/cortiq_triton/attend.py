"""Launches of the kernels that read and write rows of keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from cortiq.numerics.attention import LOG2_E_F32, scoring, steepness
from cortiq_triton import attention, key_choice, kv_cache_kernels, split_kv_attention
from cortiq_triton.call import LaunchCall
from cortiq_triton.chosen_attention import attend_chosen, reads_chosen_only
from cortiq_triton.language import INTERPRETED, ceil_div, launch, pow2
from cortiq_triton.rows import Rows, quantise_parts


@dataclass(frozen=True)
class StreamTuning:
    """Sizes of streaming over tiles: queries of a program, its warps, tiles on their way at once,
    registers of a thread at most (0: as the compiler likes).
    """

    queries: int = 64
    warps: int = 4
    stages: int = 2
    registers: int = 0


NARROW, WIDE, WIDEST = StreamTuning(), StreamTuning(warps=8), StreamTuning(queries=16, stages=1)
"""For keys and values of at most 128 columns, of at most 256, and of more."""
FEW = 16
"""Queries of a program that computes a span of tiles."""


@dataclass
class SpanTuning:
    """Sizes of spreading tiles: programs aimed at, tiles up to which one does all (at most 16), its
    warps, tiles on their way at once.
    """

    programs: int = 256
    serial: int = 2
    warps: int = 4
    stages: int = 2


SPANS = SpanTuning()
SCORED_TILES, LISTED = 2, 1024
"""Tiles that a program scores; scores that a program counts, and lists, at most."""
BEFORE, LISTING_WARPS = 16, 16
"""Earlier scores that a program reads at once, in multiples of its own, and its warps."""
STREAM_ROWS = 16
"""Rows of a sequence from which its tiles are streamed."""


def store_kv(call: LaunchCall, keys: Rows, values: Rows | None = None) -> tuple[()]:
    """Append rows to their sequences."""
    slot, offset = call.slot("kv")
    given, rows = values or keys, call.rows
    block = min(pow2(rows.count), 64) if INTERPRETED else 4
    launch(
        kv_cache_kernels.store_rows, (ceil_div(rows.count, block), slot.heads),
        *keys[:3], *given[:3],
        call.table("kv"), rows.owners, rows.positions, keys.high.shape[-1], given.high.shape[-1],
        rows.pages, offset, rows.count, G=slot.heads, DK=slot.key_dim, DV=slot.value_dim,
        KP=pow2(slot.key_dim), VP=pow2(max(1, slot.value_dim)), RB=block,
    )  # fmt: skip
    return ()


def recall(call: LaunchCall, position: torch.Tensor) -> torch.Tensor:
    """Key rows that another entry stored, as floats."""
    slot, offset = call.slot("kv")
    rows, op = call.rows, call.op
    out = torch.empty((rows.count, op.heads, op.dim), dtype=torch.float32, device=rows.device)
    block = min(pow2(rows.count), 64) if INTERPRETED else 4
    launch(
        kv_cache_kernels.recall_rows, (ceil_div(rows.count, block), slot.heads),
        call.table("kv"), rows.owners,
        position, out, call.faults, rows.pages, offset, rows.count, G=slot.heads,
        DK=slot.key_dim, KP=pow2(slot.key_dim), RB=block,
    )  # fmt: skip
    return out


def _geometry(op: Any, block: int) -> tuple[dict[str, Any], int, int]:
    """Compile-time sizes, rows of a block of queries, and programs for all heads."""
    each = op.heads // op.kv_heads
    heads = min(each, block)
    sizes = {
        "H": op.heads,
        "G": op.kv_heads,
        "HB": heads,
        "DK": op.key_dim,
        "DV": op.value_dim,
        "KP": max(32, pow2(op.key_dim)),
        "VP": max(32, pow2(op.value_dim)),
        "BM": block,
        "CAPPED": op.soft_cap is not None,
        "BLOCK": op.block,
        "SLOPED": bool(op.slopes),
    }
    return sizes, block // heads, op.kv_heads * ceil_div(each, heads)


def stream_of(columns: int) -> StreamTuning:
    """Return the sizes for tiles with so many columns of keys or values."""
    if columns > 256:
        return WIDEST
    return WIDE if columns > 128 else NARROW


def spans_of(columns: int) -> SpanTuning:
    """Return the sizes for tiles with so many columns: SPANS, with more warps for wide ones."""
    if columns <= 128:
        return SPANS
    stages = 1 if columns > 256 else SPANS.stages
    return replace(SPANS, warps=max(8, SPANS.warps), stages=stages)


def ahead_of(values: int, warps: int) -> int:
    """States of so many values that a program asks for at once: up to 8, in 64 registers."""
    return max(1, min(8, 64 * 32 * warps // values))


def streams(call: LaunchCall) -> bool:
    """Whether the tiles of each query are walked through one after the other."""
    return any(s.stop - s.start >= STREAM_ROWS for s in call.rows.segments)


@cache
def factors_of(scale: float, soft_cap: float | None) -> tuple[float, float, float, float]:
    """Constants of a layer's scores; looked up once, when a program is compiled."""
    found = scoring(scale, soft_cap)
    return float(found.factor), float(found.cap), float(found.inverse_cap), float(LOG2_E_F32)


@cache
def steep_on(slopes: tuple[float, ...], device: str) -> torch.Tensor:
    """Return how fast heads' scores fall with distance; copied when a program is compiled."""
    return torch.from_numpy(steepness(slopes)).to(device)


def attend(
    call: LaunchCall, q: Rows, position: torch.Tensor, chosen: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of all rows over their sequences' keys, and its mass if the operator wants it."""
    op = call.op
    if not op.mass:
        return attended(call, op, q, position, chosen)[0]
    logs = torch.empty((call.rows.count, op.heads, 1), device=call.rows.device)
    return attended(call, op, q, position, chosen, logs)[0], logs


def attended_rows(
    call: LaunchCall, op: Any, q: Rows, position: torch.Tensor, chosen: torch.Tensor | None = None
) -> Rows:
    """The quantised rows of all heads' results side by side."""
    out, largest = attended(call, op, q, position, chosen)
    return quantise_parts(out.view(len(out), -1), largest)


def attended(
    call: LaunchCall,
    op: Any,
    q: Rows,
    position: torch.Tensor,
    chosen: torch.Tensor | None,
    logs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results [rows, heads, columns], and bits of each head's largest magnitude."""
    rows = call.rows
    largest = torch.empty((rows.count, op.heads), dtype=torch.int32, device=rows.device)
    out = torch.empty((rows.count, op.heads, op.value_dim), device=rows.device)
    (_, offset), factors = call.slot("kv"), factors_of(op.scale, op.soft_cap)
    stream, window = streams(call), op.window or 0
    sinks, masses = call.weights.get("sinks"), largest if logs is None else logs
    if chosen is not None and not stream and reads_chosen_only(call, op, chosen):
        attend_chosen(call, op, q, position, chosen, sinks, factors, (out, largest, masses))
        return out, largest
    how = stream_of(max(op.key_dim, op.value_dim))
    sizes, each, programs = _geometry(op, how.queries if stream else FEW)
    sizes |= {"SETS": 1, "CHOSEN": 1, "MASS": logs is not None}
    if chosen is not None:
        sizes |= {"SETS": chosen.shape[1], "CHOSEN": chosen.shape[2]}
    blocks = rows.blocks(each)
    listed = blocks if chosen is None else chosen
    queries = (*q[:3], call.table("kv"), rows.owners, position, rows.positions, blocks)
    at = (q.high.shape[-1], rows.pages, offset, window, *factors)
    sink = out if sinks is None else sinks
    steep = steep_on(op.slopes, rows.device) if op.slopes else out
    if stream:
        launch(
            attention.attend_stream, (programs, len(blocks)), *queries, sink, listed, steep, out,
            largest, masses, call.faults, *at, SINK=sinks is not None,
            REST=max(16, pow2(op.value_dim - sizes["VP"] // 2)), STAGES=how.stages,
            warps=how.warps, registers=how.registers, **sizes,
        )  # fmt: skip
        return out, largest
    most = rows.most_tiles(0 if op.until else window) + (16 if window else 0)
    sums = torch.empty((rows.count, op.heads, most, op.value_dim), device=rows.device)
    numbers = torch.empty((rows.count, op.heads, most, 4), dtype=torch.int32, device=rows.device)
    counters = call.shared.counters.of(len(blocks) * programs * (most // 16 + 2))
    spread = spans_of(max(op.key_dim, op.value_dim))
    splits = min(most, max(1, spread.programs // (len(blocks) * programs)))
    rows_each = max(min(each, s.stop - s.start) for s in rows.segments)
    alive = min(FEW, pow2(rows_each * sizes["HB"]))
    launch(
        split_kv_attention.attend_spans, (programs, len(blocks), splits),
        *queries, sink, listed, steep, out,
        largest, masses, call.faults, sums, numbers, counters, *at, most, spread.serial,
        SINK=sinks is not None, MQ=alive, STAGES=spread.stages,
        AHEAD=ahead_of(alive * sizes["VP"], spread.warps), warps=spread.warps, early=True, **sizes,
    )  # fmt: skip
    return out, largest


def choose_blocks(call: LaunchCall, q: Rows, position: torch.Tensor) -> torch.Tensor:
    """The blocks of keys that each query takes: int32 [rows, heads, top]."""
    op, rows = call.op, call.rows
    _, offset = call.slot("kv")
    room = pow2(rows.last // op.block + 1 + op.top)
    shape = (rows.count, op.heads)
    best = torch.empty((*shape, room), dtype=torch.int32, device=rows.device)
    out = torch.empty((*shape, op.top), dtype=torch.int32, device=rows.device)
    launch(
        kv_cache_kernels.choose_blocks, (rows.count,), *q[:3], call.table("kv"), rows.owners,
        position, best, out,
        q.high.shape[-1], rows.pages, offset, room, H=op.heads, DK=op.key_dim,
        KP=max(32, pow2(op.key_dim)), HP=max(16, pow2(op.heads)), BLOCK=op.block, TOP=op.top,
        LOCAL=op.local, BP=room,
    )  # fmt: skip
    return out


def choose_keys(
    call: LaunchCall, q: Rows, position: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The keys that each query takes: int32 [rows, 1, top]."""
    op, rows = call.op, call.rows
    _, offset = call.slot("kv")
    tiles = rows.last // 64 + 1
    room = 64 * tiles
    out = torch.empty((rows.count, 1, op.top), dtype=torch.int32, device=rows.device)
    scores = torch.empty((rows.count, room), dtype=torch.int32, device=rows.device)
    counts = torch.empty((rows.count, 4, 256), dtype=torch.int32, device=rows.device)
    limits = torch.empty((rows.count, 4, 2), dtype=torch.int32, device=rows.device)
    launch(
        key_choice.score_keys, (rows.count, ceil_div(tiles, SCORED_TILES)), *q[:3], weights,
        call.table("kv"), rows.owners, position, scores, counts,
        q.high.shape[-1], rows.pages, offset, room, H=op.heads, DK=op.key_dim,
        KP=max(32, pow2(op.key_dim)), HP=max(16, pow2(op.heads)), SPAN=SCORED_TILES, EVERY=op.every,
    )  # fmt: skip
    entries = ceil_div(room, op.every)
    width = min(LISTED, pow2(entries))
    sizes, known = {"TOP": op.top, "EVERY": op.every, "WIDTH": width}, (counts, limits)
    for place in range(4):
        launch(
            key_choice.count_bytes, (rows.count, ceil_div(entries, width)), scores, position,
            *known, room, PLACE=place, early=True, **sizes,
        )  # fmt: skip
    launch(
        key_choice.select_keys, (rows.count, ceil_div(max(entries, op.top), width)), scores,
        position, *known, out, room, BEFORE=BEFORE, warps=LISTING_WARPS, early=True, **sizes,
    )  # fmt: skip
    return out
