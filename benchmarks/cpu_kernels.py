"""Measure the CPU backend's matmul kernels beside the machine's limits.

    python benchmarks/cpu_kernels.py [--isa NAME] [--threads N] [--layouts Q4_1 Q8_0 …]

For each layout: one row (decode), 8 and 16 rows (batched decode) and 512 rows (prefill). GB/s are
of packed weights; GMAC/s are multiply-adds of int8 or narrower codes with 16-bit activations, of
which VNNI's dot product instruction does one a 32-bit half lane: useful and issued are the same
(w16 issues two for one). In parentheses the same by CPU time of the calling thread, which a busy
machine disturbs less. `machine` is what these threads read from memory, and what the instruction
does on registers, measured just before. Medians of several runs.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable

import numpy as np

from cortiq.numerics.layouts import LAYOUTS
from cortiq.numerics.quantise import quantise_rows
from cortiq.numerics.synthetic import synthetic_weight
from cortiq_cpu import matmul_arguments
from cortiq_cpu.arguments import OpKind
from cortiq_cpu.matmul_arguments import LAYOUT_NAMES
from cortiq_cpu.native import NativeOp, ThreadPool, op_list
from cortiq_cpu.packing import PackedMatrix, aligned
from cortiq_cpu.quantised_rows import records_of

PROBE_BYTES, PROBE_ROUNDS = 1 << 28, 1 << 20

SHAPES = {1: (8192, 2048), 8: (8192, 2048), 16: (8192, 2048), 512: (1536, 2048)}
"""Outputs and columns by number of rows: 16 M weights where the question is bandwidth."""


def median_times(work: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Return median wall time and CPU time of the calling thread, in seconds."""
    walls, cpus = [], []
    work()
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.thread_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.thread_time() - cpu)
    return float(np.median(walls)), float(np.median(cpus))


class KernelCase:
    """Rows times copies of a matrix, enough of them to exceed every cache."""

    def __init__(self, layout: str, rows: int, copies: int) -> None:
        outputs, columns = SHAPES[rows]
        rng = np.random.default_rng(0)
        self.x = records_of(quantise_rows(rng.standard_normal((rows, columns)).astype(np.float32)))
        weight = synthetic_weight(layout, "w", 0, (outputs, columns))
        self.matrices = [PackedMatrix(weight, layout) for _ in range(copies)]
        self.out = aligned(4 * rows * outputs).view(np.float32)
        self.faults, self.rows = np.zeros(rows, np.uint8), ctypes.c_int32(rows)
        self.macs = rows * outputs * columns * copies
        self.bytes = sum(matrix.nbytes for matrix in self.matrices)
        self.arguments = [self._arguments(matrix, outputs) for matrix in self.matrices]
        self.ops = op_list([self._op(arguments) for arguments in self.arguments])

    def _arguments(self, matrix: PackedMatrix, outputs: int) -> matmul_arguments.MatmulArgs:
        arguments = matmul_arguments.MatmulArgs(self.x.ctypes.data, 1, 1)
        arguments.products[0] = matmul_arguments.MatmulOperand(
            matrix.address, self.out.ctypes.data, outputs
        )
        return arguments

    def _op(self, arguments: matmul_arguments.MatmulArgs) -> NativeOp:
        rows, faults = ctypes.addressof(self.rows), self.faults.ctypes.data
        return NativeOp(OpKind.MATMUL, 0, rows, faults, ctypes.addressof(arguments))

    def rates(self, pool: ThreadPool) -> tuple[float, float, float, float]:
        """Return GB/s and GMAC/s by wall time, then by CPU time."""
        wall, cpu = median_times(lambda: pool.run(self.ops, len(self.arguments)), 9)
        return tuple(n / t / 1e9 for t in (wall, cpu) for n in (self.bytes, self.macs))


class MachineProbe:
    """The machine's limits by the same clocks: GB/s read and GMAC/s on registers."""

    def __init__(self) -> None:
        self.memory = aligned(PROBE_BYTES)
        self.memory[:] = 1
        self.read = matmul_arguments.RateProbeArgs(self.memory.ctypes.data, PROBE_BYTES)
        self.dots = matmul_arguments.RateProbeArgs(None, PROBE_ROUNDS)
        kinds = ((matmul_arguments.PROBE_READ, self.read), (matmul_arguments.PROBE_DOTS, self.dots))
        self.ops = [op_list([NativeOp(k, 0, None, None, ctypes.addressof(a))]) for k, a in kinds]

    def rates(self, pool: ThreadPool) -> tuple[float, float, float, float]:
        """Return GB/s and GMAC/s by wall time, then by CPU time; of all threads by wall time."""
        read = median_times(lambda: pool.run(self.ops[0], 1), 5)
        dots = median_times(lambda: pool.run(self.ops[1], 1), 5)
        macs = self.dots.multiplies * PROBE_ROUNDS * pool.threads
        work = (PROBE_BYTES, macs)
        return tuple(
            n / times[clock] / 1e9
            for clock in range(2)
            for n, times in zip(work, (read, dots), strict=True)
        )


def line(layout: str, pool: ThreadPool, probe: MachineProbe) -> str:
    """Return one row of the table: the machine just before, then the kernels."""
    gbs, gmacs, cpu_gbs, cpu_gmacs = probe.rates(pool)
    cells = [f"{gbs:5.1f} ({cpu_gbs:5.1f}) GB/s {gmacs:6.1f} ({cpu_gmacs:6.1f}) GMAC/s"]
    for rows, copies in ((1, 4), (8, 4), (16, 2), (512, 1)):
        gbs, gmacs, cpu_gbs, cpu_gmacs = KernelCase(layout, rows, copies).rates(pool)
        if rows == 1:
            cells.append(f"{gbs:5.1f} ({cpu_gbs:5.1f}) GB/s")
        cells.append(f"{gmacs:6.1f} ({cpu_gmacs:6.1f})")
    return f"{layout:7}| " + " | ".join(cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layouts", nargs="*", default=[n for n in LAYOUT_NAMES if n != "f32"])
    options = parser.parse_args()
    unknown = set(options.layouts) - set(LAYOUTS)
    if unknown:
        parser.error(f"no layout {', '.join(unknown)}")
    pool, probe = ThreadPool(options.threads, options.isa), MachineProbe()
    print(f"{pool.isa}, {options.threads} threads; by wall time (by CPU time of one thread)")
    nothing = op_list([NativeOp(OpKind.NOTHING)] * 1000)
    barrier, _ = median_times(lambda: pool.run(nothing, 1000), 9)
    print(f"from one op to the next: {barrier * 1e3:.2f} µs")
    heads = ("machine", 44), ("1 row", 18), ("GMAC/s", 15), ("8 rows", 15), ("16 rows", 15)
    print(f"{'':7}| {' | '.join(f'{n:{width}}' for n, width in heads)} | 512 rows")
    for layout in options.layouts:
        print(line(layout, pool, probe), flush=True)
    pool.close()


if __name__ == "__main__":
    main()
