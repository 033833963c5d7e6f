"""Products for `benchmarks/gpu.py`: many rows, 32 and one, with several tilings each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from gpu_models import seconds_of
from gpu_weights import STORED, stored_weight

from cortiq.numerics.layouts import LAYOUTS
from cortiq.numerics.synthetic import synthetic_weight
from cortiq_triton import host_codes, products, weights
from cortiq_triton.products import PLAIN, Stack
from cortiq_triton.rows import quantise_rows
from cortiq_triton.tuning import DEVICE_TUNING, Tuning, use_tuning

DEVICE = "cuda:0"
GIGA = 1e9
FEW = 128
Known = dict[str, float]


def weight_of(layout: str, rows: int, columns: int) -> weights.Packed:
    """Return a weight of real codes, repeated over its rows: the host makes 128 of them.

    Parameters
    ----------
    layout : one of ours, or a format of other programs' files, a key of `STORED`.
    """
    shape = (FEW, columns)
    made = stored_weight(layout, *shape) if layout in STORED else None
    few = weights.pack(made or synthetic_weight(layout, "weight", 1, shape), "weight", DEVICE)
    assert isinstance(few, weights.Packed)
    whole = replace(few, height=rows)
    for name in weights.PARTS:
        part = getattr(few, name)
        if part is not None:
            axis = int(name == "codes" and few.kind == host_codes.PLANES)
            times = [1] * part.ndim
            times[axis] = rows // FEW
            setattr(whole, name, part.repeat(times))
    return whole


def best(tunings: list[Tuning], run: Callable[[], Any], times: int) -> tuple[float, Tuning]:
    """Return the fastest of some tilings: seconds, and which."""
    found = []
    for tuning in tunings:
        before = use_tuning(tuning)
        try:
            found.append((seconds_of(captured(run), times), tuning))
        except Exception as error:
            print(f"  {tuning}: {type(error).__name__}: {str(error)[:120]}", flush=True)
        finally:
            use_tuning(before)
    seconds, tuning = min(found, key=lambda pair: pair[0])
    for each, which in found:
        print(f"  {each * 1e6:9.1f} us  {changes(which)}", flush=True)
    return seconds, tuning


def captured(run: Callable[[], Any]) -> Callable[[], None]:
    """Capture launches as a graph, to measure the device's time and not the host's."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def changes(tuning: Tuning) -> str:
    """Return the sizes that differ from those in use."""
    pairs = vars(tuning).items()
    return ", ".join(f"{k}={v}" for k, v in pairs if getattr(DEVICE_TUNING, k) != v) or "as it is"


def dense(known: Known) -> Iterator[tuple[str, str]]:
    """Measure products of 2,048 rows: useful int8 operations per second."""
    k, n, m = 4096, 14336, 2048
    for layout in ("w8", "Q4_K", "Q8_0", "Q4_1", "Q6_K"):
        weight, x = weight_of(layout, n, k), quantise_rows(torch.randn(m, k, device=DEVICE))
        faults = torch.zeros(m, dtype=torch.int32, device=DEVICE)
        tunings = [
            replace(
                DEVICE_TUNING, special=False, bm=bm, bn_many=bn, bk=bk, warps_many=8,
                stages=stages, group=group,
            )
            for bm, bn, bk, stages, group in (
                (128, 128, 128, 3, 8), (128, 128, 128, 4, 8), (128, 128, 64, 6, 8),
                (64, 256, 128, 3, 8), (128, 128, 128, 3, 16), (128, 128, 128, 3, 4),
            )
        ]  # fmt: skip
        if layout != "w8":
            tunings = [
                replace(
                    DEVICE_TUNING, special=False, bm_blocks=bm, bn_blocks=bn, warps_blocks=warps,
                    turn=turn, stages_blocks=stages,
                )
                for bm, bn, warps, turn, stages in (
                    (64, 64, 4, 2, 3), (64, 64, 4, 4, 2), (32, 64, 4, 4, 2), (64, 128, 8, 4, 2),
                )
            ]  # fmt: skip
        print(f"product of {m} rows, {layout}:", flush=True)
        how = Stack(PLAIN, n)

        def run(w: Any = weight, q: Any = x, f: Any = faults, h: Stack = how) -> None:
            products.product(w, q, m, f, h)

        seconds, tuning = best([DEVICE_TUNING, *tunings], run, 20 if layout == "w8" else 3)
        yield (
            f"product {m} x {k} x {n}, {layout}",
            f"{2 * m * n * k / seconds / 1e12:.0f} TOPS useful ({changes(tuning)})",
        )


def batched(known: Known) -> Iterator[tuple[str, str]]:
    """Measure products of 32 rows: bytes of weights per second, the bound of batched decoding."""
    for k, n in ((4096, 28672), (4096, 6144), (14336, 4096)):
        copies = [weight_of("w8", n, k) for _ in range(4)]
        x = quantise_rows(torch.randn(32, k, device=DEVICE))
        faults = torch.zeros(32, dtype=torch.int32, device=DEVICE)
        tunings = [
            replace(
                DEVICE_TUNING, special=False, bn_some=bn, bk=bk, warps_some=warps, stages=stages
            )
            for bn, bk, warps, stages in (
                (32, 128, 4, 3), (16, 256, 4, 4), (32, 256, 4, 4), (64, 128, 4, 4),
                (64, 256, 8, 3),
            )
        ]  # fmt: skip
        print(f"32 rows, w8 {k} x {n}:", flush=True)
        how = Stack(PLAIN, n)

        def run(ws: Any = copies, q: Any = x, f: Any = faults, h: Stack = how) -> None:
            for w in ws:
                products.product(w, q, 32, f, h)

        seconds, tuning = best([DEVICE_TUNING, *tunings], run, 10)
        rate = sum(w.nbytes for w in copies) / seconds
        share = rate / known.get("stream", float("nan"))
        yield (
            f"32 rows, w8 {k} x {n}",
            f"{rate / GIGA:.0f} GB/s, {share:.0%} of the stream ({changes(tuning)})",
        )


def tunings_of_few(layout: str) -> list[Tuning]:
    """Tilings of products of one row."""
    if layout in STORED or LAYOUTS[layout].block:
        return [
            replace(DEVICE_TUNING, bn_blocked=bn, bn_e2m1=bn, span=span)
            for bn, span in ((4, 32), (4, 64), (2, 64), (8, 64), (8, 32))
        ]
    return [
        replace(DEVICE_TUNING, bn=bn, bw=bw, warps=warps)
        for bn, bw, warps in ((16, 128, 4), (8, 256, 4), (4, 512, 4), (16, 256, 8), (32, 64, 4))
    ]


def file_bytes(layout: str, rows: int, columns: int) -> float:
    """Return the bytes of a weight in a file."""
    if layout in STORED:
        return rows * columns * STORED[layout].bits / 8
    known = LAYOUTS[layout]
    if known.kind == "blocks":
        return rows * known.row_bytes(columns)
    return rows * columns * (1 + (layout == "w16"))


def one_row(layout: str, known: Known) -> tuple[str, str]:
    """Measure one row times four weights larger than every cache: bytes per second."""
    k, n = 4096, 28672
    copies = [weight_of(layout, n, k) for _ in range(4)]
    x = quantise_rows(torch.randn(1, k, device=DEVICE))
    faults = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    print(f"one row, {layout}:", flush=True)
    how = Stack(PLAIN, n)

    def run() -> None:
        for weight in copies:
            products.product(weight, x, 1, faults, how)

    seconds, tuning = best([DEVICE_TUNING, *tunings_of_few(layout)], run, 10)
    held = sum(w.nbytes for w in copies) / seconds
    file = file_bytes(layout, n, k) * len(copies) / seconds
    share = file / known.get("stream", float("nan"))
    return (
        f"one row, {layout}",
        f"{seconds * 1e6:.1f} us, {held / GIGA:.0f} GB/s held, {file / GIGA:.0f} of the file's, "
        f"{share:.0%} of the stream ({changes(tuning)})",
    )


def sparse(known: Known) -> Iterator[tuple[str, str]]:
    """Measure one row times weights of our formats and GGUF's."""
    for layout in ("w8", "w16", "Q4_K", "Q6_K", "Q5_K", "Q5_0", "Q8_0", "Q4_1", "Q4_0"):
        yield one_row(layout, known)


def stored(known: Known) -> Iterator[tuple[str, str]]:
    """Measure one row times weights of other programs' formats, beside two of GGUF."""
    for layout in (*STORED, "MXFP4", "Q4_0", "Q4_1"):
        yield one_row(layout, known)
