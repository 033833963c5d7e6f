"""Measure the wgpu backend beside its device's bandwidth: one table, and JSON at the end.

    python benchmarks/wgpu.py [--device NAME] [--sweep] [--model synthetic:llama3-8b] [--small]
                              [--only SECTION]... [--beside triton] [--json FILE]

`stream` is a kernel that only reads; `matvec` is one quantised row times w8 matrices of the model's
shapes, so many that no cache holds them, as GB/s of weights and as a share of the stream; `tiles`
is 512 rows times the same matrices, in 10¹² products of a 16-bit and an 8-bit number a second;
`blocks` is 512 rows times a matrix in formats of blocks, by the kernel in which a lane has an
output and by tiles, whose bits are compared; `uploads` is bytes of weights a second, packed and on
the device.
`--sweep` tries other sizes of both kernels, prints what each gives, and uses the best for what
follows: they change no bit, which is looked at. `decode` and `prefill` are the model's, through the
same executable as `cortiq generate`, their bits held against the CPU backend's; then every kind of
dispatch of a step and of a chunk by itself, in milliseconds. A section that fails says why, and the
others go on. `--small` does all of it with little memory and a tiny model: whether the command
works, nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # last: here a file has the name of the library that is measured

import gpu_golden as golden

from cortiq.backend import Argmax, Batch, CompileOptions, Drawn, Row
from cortiq.bench.measure import ExecutableRunner, Workload, measure
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.plugins import default_plugins
from cortiq_wgpu import open_devices
from cortiq_wgpu.backend import WgpuBackend
from cortiq_wgpu.device_rates import ProductProbe, dispatch_seconds, stream_rate, upload_rate
from cortiq_wgpu.tuning import TUNING, ProductTuning

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate and up": (28672, 4096),
    "down": (4096, 14336),
}
STREAMS = [
    {"lanes": lanes, "lines": lines, "turns": turns}
    for lanes in (32, 64, 128)
    for lines, turns in ((4, 1), (4, 2), (8, 1))
]
TILES = [
    {"rows": rows, "outputs": outputs, "down": down}
    for rows, outputs, down in ((8, 4, 8), (4, 4, 8), (8, 4, 16), (4, 4, 16), (4, 8, 16))
]
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XS",
          "IQ4_XS", "MXFP4", "w8b256", "e2m1b16", "e4m3b32")  # fmt: skip
UPLOADED = ("w8", "Q8_0", "Q4_1", "Q4_K", "Q6_K")
SECTIONS = ("stream", "matvec", "tiles", "blocks", "uploads", "whole", "other")
GIB = 1 << 30


@dataclass
class WgpuBenchmark:
    """Options and results of the benchmark.

    Attributes
    ----------
    tuning : sizes that are used. facts : by name, in order.
    """

    device: str | None
    model: str
    small: bool
    sweep: bool
    beside: str | None
    only: tuple[str, ...] = SECTIONS
    tuning: ProductTuning = TUNING
    facts: dict[str, Any] = field(default_factory=dict)

    def say(self, name: str, value: Any) -> None:
        """Keep and print a fact."""
        self.facts[name] = value
        text = f"{value:.3f}" if isinstance(value, float) else value
        print(f"{name:56} {text}", flush=True)

    def run(self) -> None:
        """Run all sections, each by itself."""
        self.gpu = open_devices.opened(self.device)
        self.say("device", self.gpu.info["device"])
        self.say("driver", self.gpu.info["description"])
        for section in (getattr(self, name) for name in SECTIONS if name in self.only):
            start = time.perf_counter()
            try:
                section()
            except Exception as error:
                traceback.print_exc()
                self.say(f"{section.__name__} failed", f"{type(error).__name__}: {error}")
            self.say(f"{section.__name__} took, seconds", time.perf_counter() - start)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Matrices by name."""
        return {"small": (256, 512)} if self.small else SHAPES

    def stream(self) -> None:
        """Measure the device's bandwidth."""
        self.say("stream GB/s", stream_rate(self.gpu, 1 << 24 if self.small else 4 * GIB) / 1e9)

    def matvec(self) -> None:
        """Measure one row times matrices."""
        products = self._products(1, 1 << 20 if self.small else GIB)
        if self.sweep:
            self._best("matvec GB/s", STREAMS[:2] if self.small else STREAMS, products, 1e9)
        for what, product in products.items():
            rate = product.streamed(self.tuning) / 1e9
            self.say(f"matvec {what} GB/s", rate)
            if "stream GB/s" in self.facts:
                share = 100 * rate / self.facts["stream GB/s"]
                self.say(f"matvec {what} % of stream", share)

    def tiles(self) -> None:
        """Measure many rows times matrices."""
        products = self._products(70 if self.small else 512, 1)
        if self.sweep:
            tried = TILES[-1:] if self.small else TILES
            self._best("tiles T/s", tried, products, 1e12)
        for what, product in products.items():
            self.say(f"tiles {what} T/s", product.tiled(self.tuning) / 1e12)

    def blocks(self) -> None:
        """Measure many rows times matrices in blocks, by lanes and in tiles."""
        height, width = (256, 512) if self.small else SHAPES["o"]
        for layout in BLOCKS:
            probe = ProductProbe(self.gpu, height, width, 70 if self.small else 512, 1, layout)
            before = probe.by_lanes()
            expected = probe.result().tobytes()
            rate = probe.tiled(self.tuning)
            self.say(f"blocks {layout} in tiles T/s", rate / 1e12)
            self.say(f"blocks {layout} in tiles, times a lane an output", rate / before)
            if probe.result().tobytes() != expected:
                raise RuntimeError(f"other bits for {layout}")

    def uploads(self) -> None:
        """Measure how fast weights go to the device."""
        for layout in UPLOADED:
            rate = upload_rate(self.gpu, layout, 1 << 20 if self.small else GIB)
            self.say(f"uploads {layout} GB/s", rate / 1e9)

    def _products(self, rows: int, nbytes: int) -> dict[str, ProductProbe]:
        shapes = self.shapes.items()
        return {what: ProductProbe(self.gpu, *shape, rows, nbytes) for what, shape in shapes}

    def _best(
        self, what: str, tried: list[dict[str, int]], products: dict[str, ProductProbe], unit: float
    ) -> None:
        """Try sizes, keep those with the least time over all products, look at their bits."""
        spent: dict[float, ProductTuning] = {}
        bits: dict[str, bytes] = {}
        for sizes in tried:
            tuning = ProductTuning(**{**asdict(self.tuning), **sizes})
            name = f"{what} with {' '.join(f'{n}={v}' for n, v in sizes.items())}"
            try:
                rates = {}
                for key, product in products.items():
                    rates[key] = (product.streamed if product.rows == 1 else product.tiled)(tuning)
                    found = product.result().tobytes()
                    if bits.setdefault(key, found) != found:
                        raise RuntimeError(f"other bits for {key}")
            except Exception as error:
                self.say(name, f"failed: {type(error).__name__}: {error}")
                continue
            self.say(name, " ".join(f"{rate / unit:.1f}" for rate in rates.values()))
            cost = sum(p.lines * p.width / rates[key] for key, p in products.items())
            spent[cost] = tuning
        self.tuning = spent[min(spent)]
        self.say(f"best of {what}", str(self.tuning))

    def whole(self) -> None:
        """Measure a model: decode, prefill, and the times of their dispatches."""
        decode = Workload(64, 8, 1, 1) if self.small else Workload(128, 128, 1, 2)
        prefill = Workload(70, 1, 1, 1) if self.small else Workload(2048, 1, 1, 2)
        extra = {"progress": shown, "tuning": asdict(self.tuning)}
        options = CompileOptions(device=self.gpu.name, extra=extra)
        executable, vocabulary = self._compiled(WgpuBackend(), options, prefill.limit + 1)
        self._speeds("wgpu", executable, vocabulary, decode, prefill)
        self._bits(executable)
        self._dispatches(executable, decode.limit, prefill.prompt_tokens)
        executable.close()

    def _bits(self, executable: Any) -> None:
        """Compare the bits of a long prompt and of steps after a short one with the CPU
        backend's.
        """
        known = json.loads(golden.GOLDEN.read_text())
        if known["model"] != self.model:
            self.say("bits", f"no golden digests of {self.model}")
            return
        state = executable.open(golden.PROMPT)
        _, context, count = golden.RUNS[0]
        golden.prompt(executable, state, 0, context)
        fork = state.fork()
        for position in range(context, context + count + golden.WARM + 1):
            token = golden.FIRST if position == context else Drawn(0)
            batch = Batch([Row(fork, position, token, golden.WANTS)])
            row = golden.completed(executable.forward(batch).result()).rows[0]
        fork.release()
        found = {golden.name_of(1, context, count): golden.text_of(row)}
        row = golden.prompt(executable, state, context, golden.PROMPT)
        found[f"prompt of {golden.PROMPT}"] = golden.text_of(row)
        state.release()
        for name, digest in found.items():
            same = digest == known[name]
            self.say(f"bits, {name}", "as on the CPU" if same else f"OTHER BITS: {digest}")

    def _compiled(self, backend: Any, options: CompileOptions, context: int) -> tuple[Any, int]:
        start = time.perf_counter()
        loaded = load_program(open_synthetic(self.model), context=context)
        executable = backend.compile(loaded.program, loaded.weights, options)
        self.say(f"{backend.name} loaded, seconds", time.perf_counter() - start)
        return executable, int(loaded.program.facts["vocab_size"])

    def _speeds(
        self, name: str, executable: Any, vocabulary: int, decode: Workload, prefill: Workload
    ) -> None:
        for what, work in (("decode", decode), ("prefill", prefill)):
            runner = ExecutableRunner(executable, work)
            speed = measure({"": runner}, work, vocabulary)[""].as_dict()[what]["median"]
            runner.close()
            self.say(f"{name} {what} tokens/s", float(speed))

    def _dispatches(self, executable: Any, context: int, prompt: int) -> None:
        """Time each kind of dispatch, in a step and in a prompt's last chunk."""
        plan = executable.plans["trunk"]
        each = min(plan.rows, prompt)
        for what, first, count in (("step", context - 1, 1), ("chunk", prompt - each, each)):
            state = executable.open(first + count)
            for start in range(0, first, plan.rows):
                feed = range(start, min(start + plan.rows, first))
                executable.forward(Batch([Row(state, i, 7 + i % 99) for i in feed])).result()
            last = first + count - 1
            rows = [Row(state, i, 7 + i % 99) for i in range(first, last)]
            rows.append(Row(state, last, 7, (Argmax(),)))
            executable.forward(Batch(rows)).result()
            found = dispatch_seconds(plan, plan.request_of(rows), (count, 1), (first, last))
            for kind, (times, spent) in sorted(found.items(), key=lambda item: -item[1][1]):
                self.say(f"{what}: {times} x {kind}, ms", 1e3 * spent)
            state.release()

    def other(self) -> None:
        """Measure the same model on another backend."""
        if self.beside is None:
            return
        backend = default_plugins().backends[self.beside]
        decode, prefill = Workload(128, 128, 1, 2), Workload(2048, 1, 1, 2)
        executable, vocabulary = self._compiled(backend, CompileOptions(), prefill.limit + 1)
        self._speeds(self.beside, executable, vocabulary, decode, prefill)
        executable.close()


def shown(what: str, done: int, total: int) -> None:
    """Print progress on stderr."""
    print(f"\r{what}: {done / 1e9:.2f} of {total / 1e9:.2f} GB", end="", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="an adapter's name or number")
    parser.add_argument("--model", default=golden.MODEL)
    parser.add_argument("--sweep", action="store_true", help="try sizes of kernels, use the best")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; several")
    parser.add_argument("--beside", help="another backend to measure the model on, triton say")
    parser.add_argument("--small", action="store_true", help="little memory, a tiny model")
    parser.add_argument("--json", type=Path, help="write the numbers here, too")
    given = parser.parse_args()
    model = "synthetic:tiny-llama?format=w8" if given.small else given.model
    only = tuple(given.only or SECTIONS)
    bench = WgpuBenchmark(given.device, model, given.small, given.sweep, given.beside, only)
    bench.run()
    text = json.dumps(bench.facts, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text)


if __name__ == "__main__":
    main()
