"""Measure one device against several that compute a model together: digests first, a table last.

    python benchmarks/ranks.py --devices 2 [--backend triton] [--model synthetic:llama3-8b]
    python benchmarks/ranks.py --devices 2 --model llama3-70b          # w8, made on the devices
    python benchmarks/ranks.py --devices 2 --backend cpu --model llama-200m --threads 1
    python benchmarks/ranks.py --must-hold      # all that two devices must hold: pass or FAIL
    python benchmarks/ranks.py --shard-of 2     # on one device: the share of one of two ranks

Starts the other ranks itself. One device computes with all that its backend has (run ahead,
captured steps). Weights are random ones by formula: on GPUs each makes its own. A digest that
differs ends the run before anything is measured, with exit code 1. `--alone` and `--together` leave
the other out. `--shard-of` starts no ranks: it bounds what they can give (`shard_of.py`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from formula_weights import by_formula
from gpu_golden import FIRST, WANTS, completed, prompt, text_of

from cortiq.backend import Backend, Batch, CompileOptions, Drawn, Row
from cortiq.model.devices import backend_named
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.models.synthetic_configs import CONFIGS
from cortiq.numerics.layouts import Weight
from cortiq.placement.place import place
from cortiq.ranks.backend import DeviceSplit, RanksBackend
from cortiq.ranks.start import INTERFACE, LOOPBACK, Ranks, free_port, start_ranks

CONFIGS["llama3-70b"] = CONFIGS["llama3-8b"] | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64,
}  # fmt: skip
CONFIGS["llama-200m"] = CONFIGS["llama3-8b"] | {
    "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
CHECKED = 64
"""Positions of two sequences whose digests are compared before anything is timed."""
STEPS_CHECKED = 6
Measured = dict[str, tuple[float, str, str]]
"""By what was measured: a number, its unit, and a digest of the last row."""


def weights_of(name: str) -> Mapping[str, Weight]:
    """Open a model's weights on a rank: those of the host, or by formula."""
    weights = load_program(open_synthetic(name)).weights
    return by_formula(weights) if "cortiq_triton.kernels" in sys.modules else weights


def make_on_devices() -> None:
    """Have Triton's weights made where they are computed with."""
    from gpu_models import made_on_the_device

    from cortiq_triton import kernels

    kernels.pack = made_on_the_device


def stepped(
    executable: Any,
    sequences: int,
    context: int,
    steps: int,
    ahead: bool = True,
    lone: bool = False,
) -> tuple[float, str]:
    """Return seconds a step of greedy decoding, the next batch given before one is read if `ahead`,
    and the digest of the last step, which all rows have; those of a `lone` rank are nobody's.
    """
    states = [executable.open(context + steps + 2) for _ in range(sequences)]
    for state in states:
        prompt(executable, state, 0, context)
    ticket = executable.forward(Batch([Row(s, context, FIRST, WANTS) for s in states]))
    warm = min(8, steps // 2)
    for step in range(steps):
        if step == warm:
            completed(ticket.result())
            start = time.perf_counter()
        if not ahead:
            completed(ticket.result())
        rows = [Row(s, context + 1 + step, Drawn(i), WANTS) for i, s in enumerate(states)]
        after = executable.forward(Batch(rows))
        completed(ticket.result())
        ticket = after
    last = completed(ticket.result())
    seconds = (time.perf_counter() - start) / (steps - warm)
    for state in states:
        state.release()
    digests = sorted({text_of(row) for row in last.rows})
    if len(digests) > 1 and not lone:
        raise RuntimeError(f"rows of one batch differ: {' '.join(digests)}")
    return seconds, digests[0]


def prompted(executable: Any, length: int) -> tuple[float, str]:
    """Return median seconds of a prompt, and its last row's digest."""
    found = []
    for _ in range(4):
        state = executable.open(length + 8)
        start = time.perf_counter()
        digest = text_of(prompt(executable, state, 0, length))
        found.append(time.perf_counter() - start)
        state.release()
    return median(found[1:]), digest


def shards(options: argparse.Namespace) -> int:
    """Measure one device, and one rank's share of several; return the exit status."""
    from shard_of import WAYS, compiled_shard

    chosen = options.ways or WAYS
    if unknown := sorted({*chosen} - {*WAYS}):
        raise SystemExit(f"no way to exchange: {unknown[0]}; there are {', '.join(WAYS)}")
    name = f"synthetic:{options.model.removeprefix('synthetic:')}?format=w8"
    backend, compiling = backend_named(options.backend), CompileOptions(threads=options.threads)
    longest = max(options.prompt, options.context + options.steps)
    program = load_program(open_synthetic(name), context=longest + 16).program
    found: dict[str, list[float]] = {}
    for way in ("one device", *chosen):
        weights = weights_of(name)
        if way == "one device":
            executable: Any = place(backend, program, weights, compiling)
        else:
            share = options.shard_of, way
            executable = compiled_shard(backend, program, weights, compiling, *share)
        seconds, _ = prompted(executable, options.prompt)
        found.setdefault(f"prompt of {options.prompt}", []).append(seconds)
        for batch in options.batches:
            for ahead in (True, False):
                given = batch, options.context, options.steps, ahead, way != "one device"
                said = f"step, batch {batch}, {'run ahead' if ahead else 'each read'}"
                found.setdefault(said, []).append(stepped(executable, *given)[0])
        executable.close()
    ways = "".join(f"{way:>12}{'ratio':>7}" for way in chosen)
    print(f"{f'milliseconds, 1 of {options.shard_of}':34}{'one device':>12}{ways}")
    for said, (one, *others) in found.items():
        cells = "".join(f"{1e3 * other:12.3f}{one / other:7.2f}" for other in others)
        print(f"{said:34}{1e3 * one:12.3f}{cells}")
    return 0


def checked(executable: Any) -> str:
    """Return the digest after a short prompt and some steps of two sequences."""
    return stepped(executable, 2, CHECKED, STEPS_CHECKED)[1]


def measured(executable: Any, options: argparse.Namespace) -> Measured:
    """Measure a prompt, and decoding in every batch."""
    seconds, digest = prompted(executable, options.prompt)
    found = {f"prompt of {options.prompt}": (options.prompt / seconds, "tokens/s", digest)}
    for batch in options.batches:
        seconds, digest = stepped(executable, batch, options.context, options.steps)
        name = f"decoding, batch {batch}, after {options.context}"
        found[name] = (batch / seconds, "tokens/s", digest)
    return found


def start_others(count: int) -> list[subprocess.Popen[bytes]]:
    """Start this program for every other rank, as torchrun does."""
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), INTERFACE: LOOPBACK}
    known |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    os.environ |= known | {"RANK": "0", "LOCAL_RANK": "0"}
    return [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(1, count)
    ]


def report(alone: Measured, together: Measured, devices: int) -> bool:
    """Print the table; return whether all digests are the same."""
    same = True
    print(f"{'':34}{'one':>12}{devices:>12}   ratio  digest")
    for name in {**alone, **together}:
        pair = [found.get(name) for found in (alone, together)]
        cells = "".join(f"{one[0]:12.1f}" if one else f"{'-':>12}" for one in pair)
        first, other = pair
        if first is None or other is None:
            given = first or other
            print(f"{name:34}{cells}{'':>8}  {given[2] if given else ''}")
            continue
        equal = first[2] == other[2]
        same &= equal
        said = "same" if equal else f"OTHER BITS: {first[2]} {other[2]}"
        print(f"{name:34}{cells}{other[0] / first[0]:8.2f}  {said}")
    return same


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--model", default="llama3-8b", help="a key of CONFIGS, in w8")
    parser.add_argument("--split", default="tensor", choices=("tensor", "layer"))
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--threads", type=int, default=0, help="of each rank, and of one device")
    parser.add_argument("--shard-of", type=int, metavar="N", help="measure one rank's share of N")
    parser.add_argument("--ways", nargs="*", help="how that exchanges; see shard_of.WAYS")
    parser.add_argument("--must-hold", action="store_true", help="a line for each, pass or FAIL")
    parser.add_argument("--large", default="llama3-70b", help="what --must-hold computes besides")
    parser.add_argument("--alone", action="store_true", help="one device only")
    parser.add_argument("--together", action="store_true", help="all devices only")
    options = parser.parse_args()
    if options.must_hold and (options.alone or options.together or options.shard_of):
        parser.error("--must-hold measures one device and several")
    if options.backend == "triton":
        make_on_devices()
    if options.shard_of:
        return shards(options)
    others = [] if options.alone or "RANK" in os.environ else start_others(options.devices)
    try:
        return compared(options)
    finally:
        for other in others:
            other.wait(60)


def compared(options: argparse.Namespace) -> int:
    """Measure one device, then all of them; return the exit status."""
    name = f"synthetic:{options.model.removeprefix('synthetic:')}?format=w8"
    backend, compiling = backend_named(options.backend), CompileOptions(threads=options.threads)
    ranks = None if options.alone else start_ranks(options.devices, backend_named, weights_of)
    if ranks is not None and options.must_hold:
        try:
            return must_hold(ranks, backend, compiling, options)
        finally:
            ranks.close()
    ways: list[tuple[str, Callable[[], Backend]]] = []
    if not options.together:
        ways.append(("one device", lambda: backend))
    if ranks is not None:
        split = DeviceSplit.of(options.split, options.devices)
        driver = ranks.driver
        ways.append((f"{options.devices}", lambda: RanksBackend(driver, backend, split, name)))
    try:
        return measure_ways(name, ways, compiling, options)
    finally:
        if ranks is not None:
            ranks.close()


def must_hold(
    ranks: Ranks, backend: Backend, compiling: CompileOptions, options: argparse.Namespace
) -> int:
    """Measure all that several devices must hold; return 0 if they do."""
    from must_hold import Bench, compared, held, large

    split = DeviceSplit.of(options.split, options.devices)

    def compiled(chosen: Backend, model: str) -> Any:
        name = f"synthetic:{model}?format=w8"
        if isinstance(chosen, RanksBackend):
            chosen = RanksBackend(ranks.driver, backend, split, name)
        return compiled_on(chosen, name, compiling, options)

    bench = Bench(compiled, checked, lambda executable: measured(executable, options))
    several = RanksBackend(ranks.driver, backend, split)
    model = options.model.removeprefix("synthetic:")
    return held(
        [
            (model, lambda: compared(bench, model, backend, several)),
            (options.large, lambda: large(bench, options.large, several)),
        ]
    )


def compiled_on(
    chosen: Backend, name: str, compiling: CompileOptions, options: argparse.Namespace
) -> Any:
    """Compile a model for as many positions as are measured."""
    longest = max(options.prompt, options.context + options.steps, CHECKED + STEPS_CHECKED)
    program = load_program(open_synthetic(name), context=longest + 16).program
    return place(chosen, program, weights_of(name), compiling)


def measure_ways(
    name: str,
    ways: Sequence[tuple[str, Callable[[], Backend]]],
    compiling: CompileOptions,
    options: argparse.Namespace,
) -> int:
    """Compile and measure each way, the digests first; return the exit status."""
    digests: list[str] = []
    found: dict[str, Measured] = {}
    for way, make in ways:
        start, chosen = time.perf_counter(), make()
        executable = compiled_on(chosen, name, compiling, options)
        digests.append(checked(executable))
        seconds = time.perf_counter() - start
        print(f"{way}: ready in {seconds:.0f} s, digest {digests[-1]}", flush=True)
        print(*getattr(chosen, "notes", ()), sep="\n", end="", flush=True)
        if digests[-1] != digests[0]:
            print("OTHER BITS")
            return 1
        found[way] = measured(executable, options)
        executable.close()
    alone = found.get("one device", {})
    return 0 if report(alone, found.get(str(options.devices), {}), options.devices) else 1


if __name__ == "__main__":
    sys.exit(main())
