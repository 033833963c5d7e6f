"""Products of one row with kept weights that are mapped, beside the same bytes copied to memory.

    python benchmarks/kept_decode.py [--layouts Q4_K i4b32 ...] [--rounds 15] [--folder DIR]

For each layout matrices of more bytes than any cache holds are packed, written to a file as the
cache keeps them, and mapped from there. In every round the machine's read probe, the copied and the
mapped matrices take their turn, on one thread and by its CPU time, which a busy machine disturbs
less. It prints what each reaches at its best, and the shares: of the probe, and mapped of copied.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from cpu_kernels import PROBE_BYTES, KernelCase, MachineProbe

from cortiq.formats.kept_file import MappedFile
from cortiq_cpu.native import ThreadPool

COPIES = 12
FOUR_BITS = (
    "Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4", "i4b32", "i4b32m", "e2m1b16", "nf4b32",
    "fp4b32",
)  # fmt: skip


def once(work: object, pool: ThreadPool, count: int) -> float:
    """Return the CPU seconds of a run."""
    started = time.thread_time()
    pool.run(work, count)
    return time.thread_time() - started


def mapped(case: KernelCase, folder: Path) -> float:
    """Put the matrices of a case into a file, and map them; return the share in huge pages."""
    with tempfile.TemporaryFile(dir=folder) as file:
        starts = []
        for matrix in case.matrices:
            starts.append(file.tell())
            file.write(matrix.data.tobytes())
            file.write(bytes(-file.tell() % 64))
        file.flush()
        found = MappedFile(file.fileno(), file.tell())
    found.populate(0, len(found.bytes))
    for matrix, start in zip(case.matrices, starts, strict=True):
        matrix.place(found.bytes[start : start + matrix.nbytes])
    return found.huge_bytes() / len(found.bytes)


def line(layout: str, rounds: int, folder: Path, pool: ThreadPool, probe: MachineProbe) -> str:
    """Return one row of the table."""
    copied, kept = KernelCase(layout, 1, COPIES), KernelCase(layout, 1, COPIES)
    huge = mapped(kept, folder)
    assert all(
        np.array_equal(a.data, b.data) for a, b in zip(copied.matrices, kept.matrices, strict=True)
    )
    runs = [(probe.ops[0], 1), (copied.ops, COPIES), (kept.ops, COPIES)]
    times = [[once(ops, pool, count) for ops, count in runs] for _ in range(rounds)]
    read, memory, file = np.min(times[1:], axis=0)
    rate = PROBE_BYTES / read
    one, other = copied.bytes / memory, kept.bytes / file
    return (
        f"{layout:8} read {rate / 1e9:5.1f} GB/s; copied {one / 1e9:5.1f} ({one / rate:.0%});"
        f" mapped {other / 1e9:5.1f} ({other / rate:.0%}), {other / one:.2f} of copied;"
        f" {huge:.0%} in huge pages"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", nargs="*", default=FOUR_BITS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    pool, probe = ThreadPool(1), MachineProbe()
    print(f"{pool.isa}, one thread, by its CPU time", flush=True)
    for layout in options.layouts:
        print(line(layout, options.rounds, options.folder, pool, probe), flush=True)
    pool.close()


if __name__ == "__main__":
    main()
