"""Measure and check the Triton backend on a GPU: one command, one table at the end.

    python benchmarks/gpu.py [--seconds 440] [--only SECTION,SECTION] [--json FILE]

Sections: use (requests through the engine, beside the executable alone), ceilings (copies, a stream
that only reads, cuBLAS bf16), dense, sparse, stored and batched (products, for several tilings:
int8 TOPS, and weights read as GB/s; stored: other programs' formats), attention (with several
settings), conformance, model (`synthetic:llama3-8b` in w8), transformers (bf16, static cache, CUDA
graphs). A section that fails says why and the others go on; what begins after the
time given is left out and said to be.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "backends/triton"))
sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
sys.path.insert(0, str(Path(__file__).parents[1] / "backends/reference"))

import torch
import triton
import triton.language as tl
from gpu_attention import attention
from gpu_golden import GOLDEN, MODEL, PROMPT, RUNS, name_of
from gpu_models import Transformers, decode, ours, prefill_kernels, prefill_seconds, seconds_of
from gpu_products import batched, dense, sparse, stored
from gpu_use import use

from cortiq_triton.language import Tensor, ceil_div, kernel, launch

DEVICE = "cuda:0"
GIGA = 1e9
TABLE = 128256 * 4096
"""Bytes of the embedding, of which a step reads a row."""
Rows = list[tuple[str, str]]
Known = dict[str, float]


@kernel
def read_stream(x: Tensor, out: Tensor, EACH: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Reads EACH blocks of int32 and keeps one number."""
    total = tl.full((BLOCK,), 0, tl.int32)
    base = tl.program_id(0).to(tl.int64) * EACH * BLOCK
    for i in range(EACH):
        total += tl.load(x + base + i * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def ceilings(known: Known) -> Iterator[tuple[str, str]]:
    """Measure the limits of the memory and the matrix units."""
    x = torch.randint(-9, 9, (1 << 30,), dtype=torch.int32, device=DEVICE)
    y = torch.empty_like(x)
    copied = 2 * x.nbytes / seconds_of(partial(y.copy_, x), 10)
    yield "copy, bytes read and written", f"{copied / GIGA:.0f} GB/s"
    del y
    each, block = 16, 4096
    grid = (ceil_div(x.numel(), each * block),)
    out = torch.empty(grid, dtype=torch.int32, device=DEVICE)
    how = {"EACH": each, "BLOCK": block, "warps": 8}
    read = partial(launch, read_stream, grid, x, out, **how)
    known["stream"] = x.nbytes / seconds_of(read, 10)
    yield "read-only stream", f"{known['stream'] / GIGA:.0f} GB/s"
    del x, read
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    rate = 2 * 8192**3 / seconds_of(lambda: a @ a, 20)
    yield "cuBLAS bf16, 8192 cubed", f"{rate / 1e12:.0f} TFLOP/s"


def show(kernels: list[tuple[str, float, int]]) -> None:
    """Print the device's time: the longest kernels and the total."""
    for name, microseconds, count in kernels[:14]:
        print(f"  {microseconds:10.1f} us  {count:5} x  {name[:90]}", flush=True)
    print(f"  {sum(each[1] for each in kernels):10.1f} us  together", flush=True)


def judge(name: str, digests: set[str]) -> str:
    """Compare digests with the golden ones."""
    golden = json.loads(GOLDEN.read_text()).get(name) if GOLDEN.exists() else None
    if golden is None:
        return f"digest {', '.join(digests)}, and no golden one"
    return "golden digest" if digests == {golden} else f"OTHER BITS: {', '.join(digests)}"


def model(known: Known) -> Iterator[tuple[str, str]]:
    """Measure our 8B model."""
    torch.cuda.reset_peak_memory_stats()
    before, start = torch.cuda.memory_allocated(), time.perf_counter()
    executable = ours(MODEL, DEVICE)
    held = torch.cuda.memory_allocated() - before
    yield "ours, w8: weights", f"{held / 2**30:.2f} GiB in {time.perf_counter() - start:.1f} s"
    seconds, digest = prefill_seconds(executable, PROMPT)
    known["prefill"] = PROMPT / seconds
    judged = judge(f"prompt of {PROMPT}", {digest})
    yield f"ours, w8: prefill of {PROMPT}", f"{known['prefill']:.0f} tokens/s; {judged}"
    show(prefill_kernels(executable, PROMPT))
    for sequences, context, steps in RUNS:
        got = decode(executable, sequences, context, steps)
        known[f"decode {sequences} {context}"] = got["rate"]
        show(got["kernels"])
        rows = context + steps
        read = held - TABLE + sequences * rows * executable.layout.page_bytes / 64
        part = read / got["device"] / known.get("stream", float("nan"))
        yield (
            f"ours, w8: decode, batch {sequences}, context {context}",
            f"{got['rate']:.1f} tokens/s; device {got['device'] * 1e6:.0f} us, wall minus device "
            f"{(got['wall'] - got['device']) * 1e6:.0f} us; weights and rows "
            f"read at {part:.0%} of the stream; "
            f"{judge(name_of(sequences, context, steps), got['digests'])}",
        )
    peak = torch.cuda.max_memory_allocated() - before
    rows = executable.memory.spare_bytes
    over = peak / (held + rows) - 1
    yield (
        "ours, w8: peak memory, loading included",
        f"{peak / 2**30:.2f} GiB, {over:.1%} over weights and {rows / 2**30:.2f} GiB of rows",
    )
    if executable.decoder.refused:
        yield "ours: graphs are off", executable.decoder.refused
    executable.close()


def transformers(known: Known) -> Iterator[tuple[str, str]]:
    """Measure transformers' model of the same geometry in bf16."""
    other = Transformers(DEVICE)
    rate = 2048 / other.prefill(2048)
    ratio = known.get("prefill", float("nan")) / rate
    yield "transformers bf16: prefill of 2,048", f"{rate:.0f} tokens/s; ours {ratio:.2f} times"
    for sequences, context, steps in ((1, 128, 128), (32, 512, 64)):
        rate = other.decode(sequences, context, steps)
        ratio = known.get(f"decode {sequences} {context}", float("nan")) / rate
        yield (
            f"transformers bf16: decode, batch {sequences}, context {context}",
            f"{rate:.1f} tokens/s; ours {ratio:.2f} times",
        )


def conformance(known: Known) -> Iterator[tuple[str, str]]:
    """Run as many conformance cases of each level as its share of the time allows."""
    from cortiq_conformance.catalogue import cases
    from cortiq_conformance.runner import make_subject, run_case
    from cortiq_triton.backend import TritonBackend

    subject = make_subject(TritonBackend())
    for level in range(5):
        until, counted = time.perf_counter() + 20, {}
        for case in sorted(cases((level,), "quick", None), key=lambda c: c.stage):
            if time.perf_counter() > until:
                break
            result = run_case(case, subject)
            counted[result.outcome.value] = counted.get(result.outcome.value, 0) + 1
            if result.outcome.value != "same":
                print(f"  {result.outcome.value}: {case.id}: {result.reason[:200]}", flush=True)
        yield f"conformance, level {level}", str(counted)


SECTIONS: dict[str, Callable[[Known], Iterator[tuple[str, str]]]] = {
    "use": use,
    "ceilings": ceilings,
    "conformance": conformance,
    "model": model,
    "dense": dense,
    "sparse": sparse,
    "stored": stored,
    "batched": batched,
    "attention": attention,
    "transformers": transformers,
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, then print the table; exit 1 if a section failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=440, help="no section begins after these")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections")
    parser.add_argument("--json", type=Path, help="write the table here too")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no GPU: nothing can be measured here")
        return 1
    start, known = time.perf_counter(), Known()
    table: Rows = [
        ("device", torch.cuda.get_device_name(DEVICE)),
        ("torch, triton", f"{torch.__version__}, {triton.__version__}"),
    ]
    failed = False
    for name in options.only.split(","):
        if time.perf_counter() - start > options.seconds:
            table.append((name, "left out: no time"))
            continue
        try:
            for row in SECTIONS[name](known):
                table.append(row)
                print(f"[{time.perf_counter() - start:5.0f} s] {row[0]}: {row[1]}", flush=True)
        except Exception as error:
            failed = True
            traceback.print_exc()
            table.append((name, f"FAILED: {type(error).__name__}: {str(error)[:200]}"))
        torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(dict(table), indent=1))
    print(f"\n{'':=<100}")
    for left, right in table:
        print(f"{left:52} {right}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
