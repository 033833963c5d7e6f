"""Attention for `benchmarks/gpu.py`: a prompt and decoding, the geometry of 8B models.

Pages hold random rows, of several layers where those of one would stay in the cache; launches are
captured, so that only the device's time counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from gpu_models import seconds_of

from cortiq.backend.walk import Segment
from cortiq.ir import ops
from cortiq_triton import attend
from cortiq_triton.attend import SpanTuning, StreamTuning
from cortiq_triton.call import Counters
from cortiq_triton.rows import quantise_rows
from cortiq_triton.rowset import RowSet

DEVICE = "cuda:0"
HEADS, GROUPS, WIDTH, TILE = 32, 8, 128, 64
PAGE = GROUPS * TILE * (4 * WIDTH + 2)
REPEATS = 16
CACHE = 1 << 28
"""Bytes of keys and values after which the first are no longer in the device's cache."""
CAPTURED = 64
"""Pages that a captured step has room for, though it may read fewer."""
STREAMS = [
    StreamTuning(64, 4, 2),
    StreamTuning(64, 4, 3),
    StreamTuning(128, 8, 2),
    StreamTuning(64, 4, 1),
    StreamTuning(64, 4, 1, 168),
]
SPANS = [
    SpanTuning(programs, serial, warps, stages)
    for programs, serial, warps, stages in (
        (1024, 2, 4, 2), (1024, 4, 4, 2), (1024, 1, 4, 2), (256, 2, 4, 2), (2048, 2, 4, 2),
        (512, 16, 4, 2), (1024, 2, 2, 2), (1024, 2, 8, 2), (1024, 2, 4, 3), (512, 16, 4, 3),
    )
]  # fmt: skip
Known = dict[str, float]


def rows_of(sequences: int, context: int, count: int) -> RowSet:
    """Return the last `count` positions of sequences of this length, with their own pages."""
    each = -(-context // TILE)
    pages = torch.randint(-99, 99, (sequences, each, PAGE), dtype=torch.int8, device=DEVICE)
    pages[..., -2 * GROUPS * TILE :] = torch.randint(-18, -14, (2 * GROUPS * TILE,)).to(pages)
    width = max(each, CAPTURED)
    table = torch.zeros(sequences, width, dtype=torch.int64, device=DEVICE)
    table[:, :each] = pages.data_ptr() + PAGE * torch.arange(sequences * each).view(-1, each)
    whole = torch.arange(sequences, device=DEVICE, dtype=torch.int32)
    start = context - count
    seen, state = range(start, context), SimpleNamespace(pages=pages)
    segments: list[Any] = [
        Segment(state, i * count, (i + 1) * count, seen)  # type: ignore[type-var]
        for i in range(sequences)
    ]
    positions = torch.arange(start, context, device=DEVICE, dtype=torch.int32).repeat(sequences)
    owners, last = whole.repeat_interleave(count), width * TILE - 1
    rows = (positions, owners, table, width, table, whole * count, (whole + 1) * count, last)
    return RowSet(DEVICE, segments, *rows)


def captured(runs: list[Callable[[], Any]]) -> Callable[[], None]:
    """Capture several runs as one graph."""
    for run in runs:
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(REPEATS):
            runs[i % len(runs)]()
    return graph.replay


def layers(sequences: int, context: int, count: int) -> list[Callable[[], Any]]:
    """Return attention of such rows in enough layers to exceed every cache."""
    held = sequences * -(-context // TILE) * PAGE
    copies = min(REPEATS, max(1, CACHE // held))
    return [call_of(rows_of(sequences, context, count)) for _ in range(copies)]


def call_of(rows: RowSet) -> Callable[[], Any]:
    """Return attention of these rows, to be launched."""
    q = quantise_rows(torch.randn(rows.count, HEADS, WIDTH, device=DEVICE))
    op = ops.Attend(HEADS, GROUPS, WIDTH, WIDTH, WIDTH**-0.5)
    call: Any = SimpleNamespace(
        rows=rows, weights={}, shared=SimpleNamespace(counters=Counters(DEVICE)),
        faults=torch.zeros(rows.count, dtype=torch.int32, device=DEVICE),
        slot=lambda role: (SimpleNamespace(heads=GROUPS), 0),
    )  # fmt: skip
    return lambda: attend.attended(call, op, q, rows.positions, None)


def measured(
    name: str, runs: list[Callable[[], Any]], settings: list[Any], use: str, times: int
) -> str:
    """Print the times of all settings of attend's `use`; return the fastest."""
    before, found = getattr(attend, use), []
    for setting in settings:
        setattr(attend, use, replace(setting))
        try:
            found.append((seconds_of(captured(runs), times) / REPEATS, setting))
        except Exception as error:
            print(f"  {setting}: {type(error).__name__}: {str(error)[:120]}", flush=True)
        finally:
            setattr(attend, use, before)
    shown = [f"{s * 1e6:.1f}us {'/'.join(map(str, vars(which).values()))}" for s, which in found]
    print(f"{name} ({'/'.join(vars(settings[0]))}): {', '.join(shown)}", flush=True)
    seconds, which = min(found, key=lambda pair: pair[0])
    own = found[0][0] if found[0][1] == before else float("nan")
    return f"{own * 1e6:.1f} us as it is, {seconds * 1e6:.1f} us with {which}"


def attention(known: Known) -> Iterator[tuple[str, str]]:
    """Measure a layer's attention of a prompt, and of single rows of one sequence and of many."""
    runs = layers(1, 2048, 2048)
    yield "attention, prompt of 2,048", measured("prompt of 2048", runs, STREAMS, "NARROW", 2)
    for sequences, context in ((1, 128), (1, 4096), (1, 32768), (32, 512)):
        runs, name = layers(sequences, context, 1), f"{sequences} x {context}"
        yield f"attention, decode, {name}", measured(name, runs, SPANS, "SPANS", 10)
