"""All threads beside one: decoding against the rate of reading memory, prompts against one thread.

    python benchmarks/threads.py [--threads 16] [--formats Q4_0 w8] [--layers 8] [--prompt 512]

The model is `synthetic:llama3-8b` with some of its 32 layers, of which a step reads 1.2 GB in
Q4_0 and 2.3 GB in w8: more than caches hold. For each format and number of threads the least time
of some steps and prompts is taken, by wall: nothing else should run. The read probe goes through
2 GiB that as many threads touched first, as threads pack the weights.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from cortiq.backend import CompileOptions
from cortiq.bench.measure import ExecutableRunner, Workload, cores
from cortiq.models import LoadedProgram, load_program
from cortiq.models.synthetic import open_synthetic
from cortiq_cpu.backend import CpuBackend
from cortiq_cpu.matmul_arguments import PROBE_READ, RateProbeArgs
from cortiq_cpu.native import ISAS, NativeOp, ThreadPool, isa_number, op_list
from cortiq_cpu.packing import aligned

PROBE_BYTES, PROBES = 2 << 30, 5
CONTEXT, STEPS, ROUNDS = 1024, 8, 3
TABLE = "model.embed_tokens.weight"
"""Read a row at a time: not among a step's bytes."""


@dataclass(frozen=True)
class Speeds:
    """Seconds of a prompt and of a step, and the bytes of weights that a step reads."""

    prompt: float
    step: float
    nbytes: int


def least(work: Callable[[], object], rounds: int) -> float:
    """Return the least seconds that a call takes."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def read_rate(threads: int) -> float:
    """Return the bytes that these threads read from memory in a second."""
    data, pool = aligned(PROBE_BYTES), ThreadPool(threads)
    share = PROBE_BYTES // threads

    def touch(index: int) -> None:
        data[index * share : (index + 1) * share] = 1

    with ThreadPoolExecutor(threads) as touching:
        list(touching.map(touch, range(threads)))
    arguments = RateProbeArgs(data.ctypes.data, PROBE_BYTES)
    ops = op_list([NativeOp(PROBE_READ, 0, None, None, ctypes.addressof(arguments))])
    seconds = least(lambda: pool.run(ops, 1), PROBES)
    pool.close()
    return PROBE_BYTES / seconds


def some_layers(layout: str, layers: int) -> LoadedProgram:
    """Return the synthetic model with its first layers only."""
    whole = open_synthetic(f"synthetic:llama3-8b?format={layout}")
    config = {**whole.config, "num_hidden_layers": layers}
    return load_program(replace(whole, config=config), context=CONTEXT)


def speeds(loaded: LoadedProgram, threads: int, prompt: int) -> Speeds:
    """Measure a model with so many threads."""
    executable = CpuBackend().compile(
        loaded.program, loaded.weights, CompileOptions(threads=threads)
    )
    runner = ExecutableRunner(executable, Workload(prompt, CONTEXT - prompt - 1))
    ids = Workload(prompt).prompt(1 << 16)
    runner.prefill(ids[:32])
    step = least(lambda: runner.decode(STEPS), ROUNDS) / STEPS
    spent = least(lambda: runner.prefill(ids), ROUNDS if threads > 1 else 1)
    runner.close()
    executable.close()
    read = sum(weight.nbytes for name, weight in loaded.weights.items() if name != TABLE)
    return Speeds(spent, step, read)


def machine() -> str:
    """Return what decides how threads get on: processors, those that share a core, NUMA nodes."""
    system = Path("/sys/devices/system")
    nodes = len(list(system.glob("node/node[0-9]*"))) or "?"
    shared = {
        path.read_text().strip()
        for path in system.glob("cpu/cpu[0-9]*/topology/thread_siblings_list")
    }
    place = f"{len(shared) or '?'} cores and {nodes} NUMA nodes"
    return f"{cores()} of {os.cpu_count()} processors, {place}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--formats", nargs="*", default=["Q4_0", "w8"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512)
    given = parser.parse_args()
    counts = (given.threads, 1)
    rates = {count: read_rate(count) for count in counts}
    reading = ", ".join(f"{rates[count] / 1e9:.1f} GB/s with {count}" for count in counts)
    print(f"{ISAS[isa_number(None)]}; {machine()}; reading {reading}", flush=True)
    for layout in given.formats:
        loaded = some_layers(layout, given.layers)
        all_, one = (speeds(loaded, count, given.prompt) for count in counts)
        for count, found in zip(counts, (all_, one), strict=True):
            rate = found.nbytes / found.step
            print(
                f"{layout:6} {count:3} threads: {1e3 * found.step:7.1f} ms a step,"
                f" {rate / 1e9:6.1f} GB/s, {rate / rates[count]:.0%} of reading;"
                f" prompt {given.prompt / found.prompt:7.1f} tokens/s", flush=True
            )  # fmt: skip
        times = f"prompt {one.prompt / all_.prompt:.1f}, decode {one.step / all_.step:.1f}"
        print(f"{layout:6} {times} times one thread", flush=True)


if __name__ == "__main__":
    main()
