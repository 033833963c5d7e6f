"""Speed of the wgpu backend beside what its device reads: one command, one table.

    python benchmarks/wgpu.py [--device NAME] [--model synthetic:llama3-8b] [--small] [--json FILE]

`stream` is a kernel that only reads; `matvec` is one quantised row times w8 matrices of the model's
shapes, so many that no cache holds them, as GB/s of weights and as a share of the stream. `decode`
and `prefill` are the model's, through the same executable as `cortiq generate`. `--small` does the
same with little memory and a tiny model: whether the command works, nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.pop(0)  # this folder, in which a file has the name of the library that is measured

from cortiq.backend import CompileOptions
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.synthetic import synthetic_weight
from cortiq.plugins import availability, default_plugins
from cortiq.runtime.bench import OwnRunner, Work, measure
from cortiq_wgpu import opening
from cortiq_wgpu.backend import WgpuBackend
from cortiq_wgpu.device import Gpu
from cortiq_wgpu.packing import Matrix, Uploader
from cortiq_wgpu.places import record_words, units_of
from cortiq_wgpu.source import Kernel
from cortiq_wgpu.streams import fast_kernel

STREAM = """
@group(0) @binding(0) var<storage, read> data: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let count = arrayLength(&data);
  let step = groups.x * 256u;
  var sum = vec4u(0u);
  for (var i = id.x; i < count; i += 4u * step) {
    sum += data[i] ^ data[min(i + step, count - 1u)] ^ data[min(i + 2u * step, count - 1u)]
      ^ data[min(i + 3u * step, count - 1u)];
  }
  if (sum.x + sum.y + sum.z + sum.w == 0x12345678u) { out[0] = 1u; }
}
"""
SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate and up": (28672, 4096),
    "down": (4096, 14336),
}
GIB = 1 << 30


def seconds(gpu: Gpu, work: Callable[[Any], None], repeats: int = 5) -> float:
    """Median time of what `work` encodes into a compute pass, submission and wait included."""
    probe = gpu.buffer(16)
    spent = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        encoder = gpu.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        work(compute)
        compute.end()
        gpu.device.queue.submit([encoder.finish()])
        gpu.download(probe, 0, 4)
        spent.append(time.perf_counter() - start)
    return median(spent[1:])


def dispatched(gpu: Gpu, kernel: Kernel, group: Any, groups: int, compute: Any) -> None:
    """Encode one dispatch."""
    compute.set_pipeline(gpu.pipeline(kernel)[0])
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(groups)


def stream_rate(gpu: Gpu, nbytes: int) -> float:
    """Bytes a second that a kernel reads which does nothing else."""
    each = min(nbytes, gpu.binding_bytes)
    kernel, out = Kernel(STREAM, ()), gpu.buffer(16)
    buffers = [gpu.buffer(each) for _ in range(max(1, nbytes // each))]
    bound = [gpu.bound(kernel, {"data": buffer, "out": out}) for buffer in buffers]

    def work(compute: Any) -> None:
        for group in bound:
            dispatched(gpu, kernel, group, 132 * 16, compute)

    return each * len(buffers) / seconds(gpu, work)


def matvec_rate(gpu: Gpu, shape: tuple[int, int], nbytes: int) -> float:
    """Bytes of weights a second of a product of one row."""
    height, width = shape
    upload = Uploader(gpu, gpu.binding_bytes)
    weight = synthetic_weight("w8", "w", 0, (min(height, 1024), width))
    weight = weight.take(np.arange(height) % 1024)
    copies: list[Matrix] = [
        upload.matrix(weight, "w") for _ in range(max(1, nbytes // (height * width)))
    ]
    kernel = fast_kernel(copies[0].form, gpu.dot, 1, 1)
    units = units_of(width)
    values = {
        "inner": 1, "start": 0, "stop": height, "base": 0, "units": units, "q": 0,
        "size": record_words(width), "n": height, "groups": copies[0].groups, "slots": 1,
        "first0": 0, "out0": 0, "width0": height, "scale": 0,
    }  # fmt: skip
    words = np.array(kernel.words((0, 0, 0), [values]), np.uint32)
    header = np.array([0, 1, 1, 1, 16, 16, 16, 0] + [0] * 8, np.uint32)
    shared = {
        "p": gpu.uploaded(words), "m": gpu.uploaded(header), "x": gpu.buffer(4 * height),
        "faults": gpu.buffer(16), "q": gpu.uploaded(np.full(record_words(width), 3, np.uint32)),
    }  # fmt: skip
    bound = [
        gpu.bound(kernel, {**shared, "codes": m.parts[0].codes, "s": m.parts[0].side})
        for m in copies
    ]

    def work(compute: Any) -> None:
        for group in bound:
            dispatched(gpu, kernel, group, -(-height // 4), compute)

    return len(copies) * height * width / seconds(gpu, work)


def model_speeds(
    backend: Any, device: str | None, name: str, decode: Work, prefill: Work
) -> dict[str, float]:
    """Decode and prefill of a model, tokens a second."""
    loaded = load_program(open_synthetic(name), context=prefill.limit + 1)
    extra = {"progress": shown} if isinstance(backend, WgpuBackend) else {}
    options = CompileOptions(device=device, extra=extra)
    executable = backend.compile(loaded.program, loaded.weights, options)
    vocabulary = int(loaded.program.facts["vocab_size"])
    found = {}
    for what, work in (("decode", decode), ("prefill", prefill)):
        runner = OwnRunner(executable, work)
        found[what] = measure({"": runner}, work, vocabulary)[""].as_dict()[what]["median"]
        runner.close()
    executable.close()
    return found


def shown(what: str, done: int, total: int) -> None:
    """Say how far it is, on stderr."""
    print(f"\r{what}: {done / 1e9:.2f} of {total / 1e9:.2f} GB", end="", file=sys.stderr)


def others() -> dict[str, Any]:
    """Backends to measure beside this one: Triton, where it has a device."""
    found = default_plugins().backends.get("triton")
    return {"triton": found} if found is not None and availability(found)[1] is None else {}


def measured(device: str | None, model: str, small: bool) -> dict[str, Any]:
    """Everything, for the table."""
    gpu = opening.opened(device)
    size = 1 << 24 if small else 4 * GIB
    rate = stream_rate(gpu, size)
    facts: dict[str, Any] = {"device": gpu.info["device"], "driver": gpu.info["description"]}
    facts["stream GB/s"] = rate / 1e9
    shapes = {"small": (512, 512)} if small else SHAPES
    for what, shape in shapes.items():
        got = matvec_rate(gpu, shape, size // 4)
        facts[f"matvec {what} GB/s"] = got / 1e9
        facts[f"matvec {what} % of stream"] = 100 * got / rate
    decode = Work(64, 8, 1, 1) if small else Work(128, 128, 1, 3)
    prefill = Work(70, 1, 1, 1) if small else Work(2048, 1, 1, 3)
    beside = {} if small else others()
    for name, backend in {"wgpu": WgpuBackend(), **beside}.items():
        where = gpu.name if name == "wgpu" else None
        for what, speed in model_speeds(backend, where, model, decode, prefill).items():
            facts[f"{name} {what} tokens/s"] = speed
    return facts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="an adapter's name or number")
    parser.add_argument("--model", default="synthetic:llama3-8b")
    parser.add_argument("--small", action="store_true", help="little memory, a tiny model")
    parser.add_argument("--json", type=Path, help="write the numbers here, too")
    given = parser.parse_args()
    model = "synthetic:tiny-llama?format=w8" if given.small else given.model
    facts = measured(given.device, model, given.small)
    for name, value in facts.items():
        print(f"{name:32} {value if isinstance(value, str) else round(value, 2)}")
    if given.json:
        given.json.write_text(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
