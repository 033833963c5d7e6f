"""Time by op, recorded by the native core when asked, beside what bounds it.

`profile_costs.py` says what an op costs at least. The machine's rates are measured: bytes read from
memory a second, multiply-adds of the instruction that products are made of, and float operations,
both on registers alone; all with all threads.
"""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cortiq_cpu.arguments import address, aligned_zeros
from cortiq_cpu.matmul_arguments import PROBE_DOTS, PROBE_FLOATS, PROBE_READ, RateProbeArgs
from cortiq_cpu.native import NativeOp, ThreadPool, op_list

PROBE_BYTES = 256 << 20
"""More than any cache."""
PROBE_ROUNDS = 1 << 20
PROBES = 5
"""Repetitions, of which the fastest counts: a limit is what nothing exceeds."""


class OpCost(NamedTuple):
    """Bytes that an op moves at least, multiply-adds of the dot product instruction, and operations
    on float lanes.
    """

    nbytes: int = 0
    products: int = 0
    floats: int = 0


def moving(nbytes: int) -> Callable[[int], OpCost]:
    """Return the cost of an op that moves so many bytes a row."""
    return lambda rows: OpCost(nbytes * rows)


class OpLabel(NamedTuple):
    """The name and the cost of an op in a profile.

    Attributes
    ----------
    name : operator and role. cost : of the rows that it has now; they are counted for it.
    looks : whether `cost` reads an input of the op, whose place later ops take.
    """

    name: str
    cost: Callable[[int], OpCost] = moving(0)
    looks: bool = False


@dataclass
class OpTotal:
    """Sums over the ops of one name, and the least time of one of them."""

    nanoseconds: int = 0
    least: float = float("inf")
    calls: int = 0
    nbytes: int = 0
    products: int = 0
    floats: int = 0


@dataclass(frozen=True)
class MachineRates:
    """Measured rates with these threads, a second: bytes read, multiply-adds, float lanes."""

    nbytes: float
    products: float
    floats: float


class OpProfile:
    """Sums by the ops' names, since recording was last started.

    Attributes
    ----------
    recording : whether batches note their times now; it slows small ones down.
    """

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self.recording = False
        self.totals: dict[str, OpTotal] = defaultdict(OpTotal)

    def start(self) -> None:
        """Clear the record, and start recording."""
        self.recording = True
        self.totals.clear()

    def stop(self) -> list[dict[str, Any]]:
        """Stop recording and return the table."""
        self.recording = False
        return self.table()

    def run(self, ops: Any, labels: Sequence[OpLabel]) -> None:
        """Execute ops and note the time of each."""
        start = 0
        for stop, label in enumerate(labels, 1):
            if label.looks or stop == len(ops):
                part = (NativeOp * (stop - start)).from_buffer(ops, start * ctypes.sizeof(NativeOp))
                self._run_part(part, labels[start:stop])
                start = stop

    def _run_part(self, ops: ctypes.Array[NativeOp], labels: Sequence[OpLabel]) -> None:
        spent = (ctypes.c_int64 * len(ops))()
        self._pool.run(ops, len(ops), spent)
        for op, label, time_ in zip(ops, labels, spent, strict=True):
            total = self.totals[label.name]
            total.nanoseconds += time_
            total.least = min(total.least, time_)
            total.calls += 1
            cost = label.cost(ctypes.c_int32.from_address(op.rows).value)
            total.nbytes += cost.nbytes
            total.products += cost.products
            total.floats += cost.floats

    @cached_property
    def rates(self) -> MachineRates:
        """Measured rates of the machine, at the first use."""
        data = aligned_zeros(PROBE_BYTES)
        data[::4096] = 1
        read = RateProbeArgs(data=address(data), count=PROBE_BYTES)
        dots, floats = RateProbeArgs(count=PROBE_ROUNDS), RateProbeArgs(count=PROBE_ROUNDS)
        read_seconds = self._seconds(PROBE_READ, read)
        dot_seconds = self._seconds(PROBE_DOTS, dots)
        float_seconds = self._seconds(PROBE_FLOATS, floats)
        rounds = PROBE_ROUNDS * self._pool.threads
        return MachineRates(
            PROBE_BYTES / read_seconds,
            rounds * dots.multiplies / dot_seconds,
            rounds * floats.multiplies / float_seconds,
        )

    def _seconds(self, kind: int, arguments: RateProbeArgs) -> float:
        rows, faults = np.ones(1, np.int32), np.zeros(1, np.uint8)
        ops = op_list(
            [NativeOp(kind, 0, address(rows), address(faults), ctypes.addressof(arguments))]
        )
        best = float("inf")
        for _ in range(PROBES):
            start = time.perf_counter()
            self._pool.run(ops, 1)
            best = min(best, time.perf_counter() - start)
        return best

    def limits(self) -> dict[str, float]:
        """Return the measured rates, for people and JSON."""
        return {
            "gigabytes_read": round(self.rates.nbytes / 1e9, 3),
            "giga_multiplies": round(self.rates.products / 1e9, 3),
            "giga_floats": round(self.rates.floats / 1e9, 3),
        }

    def table(self) -> list[dict[str, Any]]:
        """Return table rows, the costliest first; `bound_ms` is the larger limit's time."""
        whole = sum(total.nanoseconds for total in self.totals.values()) or 1
        ordered = sorted(self.totals.items(), key=lambda item: -item[1].nanoseconds)
        return [self._row(name, total, whole) for name, total in ordered]

    def _row(self, name: str, total: OpTotal, whole: int) -> dict[str, Any]:
        memory = 1e3 * total.nbytes / self.rates.nbytes
        arithmetic = 1e3 * total.products / self.rates.products
        arithmetic += 1e3 * total.floats / self.rates.floats
        spent = total.nanoseconds / 1e6
        bound = max(memory, arithmetic)
        return {
            "op": name,
            "calls": total.calls,
            "ms": round(spent, 3),
            "share": round(total.nanoseconds / whole, 4),
            "memory_ms": round(memory, 3),
            "arithmetic_ms": round(arithmetic, 3),
            "of_bound": float(f"{bound / spent:.3g}") if spent else None,
        }
