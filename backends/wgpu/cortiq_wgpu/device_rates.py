"""Measured rates of a device: bytes read, products, and times of a program's dispatches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from cortiq.backend.requests import RequestedOutputs
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.synthetic import synthetic_weight
from cortiq_wgpu.block_offsets import record_words, units_of
from cortiq_wgpu.device import GpuDevice
from cortiq_wgpu.dispatch import Dispatch
from cortiq_wgpu.matvec_shaders import fast_kernel
from cortiq_wgpu.plan import WgpuPlan
from cortiq_wgpu.product_dispatches import LANES, MANY, turned_words, words_beside
from cortiq_wgpu.product_shaders import product_kernel
from cortiq_wgpu.product_tile import tile_of
from cortiq_wgpu.quantised_rows import records_of
from cortiq_wgpu.shader_source import ShaderSource
from cortiq_wgpu.tile_shaders import spread_kernel, tile_kernel
from cortiq_wgpu.tuning import ProductTuning
from cortiq_wgpu.uploads import MatrixSlice, Uploader, WgpuMatrix

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
STREAM_GROUPS = (132 * 4, 132 * 16, 132 * 64)
"""Workgroups tried for the stream; the fastest counts."""
REPEATED = 4
"""How often dispatches are encoded, so that waiting for them matters little."""
EncodedDispatch = tuple[Any, Any, tuple[int, int, int]]
"""Pipeline, bind group, workgroups."""


def seconds(gpu: GpuDevice, dispatches: Iterable[EncodedDispatch], repeats: int = 5) -> float:
    """Measure the median time of some dispatches in a row, submission and wait included."""
    listed = list(dispatches)
    probe = gpu.buffer(16)
    spent = []
    for _ in range(repeats + 1):
        encoder = gpu.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for pipeline, group, groups in listed:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*groups)
        compute.end()
        commands = encoder.finish()
        start = time.perf_counter()
        gpu.device.queue.submit([commands])
        gpu.download(probe, 0, 4)
        spent.append(time.perf_counter() - start)
    return median(spent[1:])


def _dispatch(
    gpu: GpuDevice, kernel: ShaderSource, buffers: dict[str, Any], groups: Sequence[int]
) -> EncodedDispatch:
    x, y, z = (*groups, 1, 1, 1)[:3]
    return gpu.pipeline(kernel)[0], gpu.bound(kernel, buffers), (x, y, z)


def copies(gpu: GpuDevice, buffer: Any, count: int) -> list[Any]:
    """Return a buffer and copies of it, so many that no cache holds them all."""
    encoder = gpu.device.create_command_encoder()
    made = [gpu.buffer(buffer.size) for _ in range(count - 1)]
    for other in made:
        encoder.copy_buffer_to_buffer(buffer, 0, other, 0, buffer.size)
    gpu.device.queue.submit([encoder.finish()])
    return [buffer, *made]


def stream_rate(gpu: GpuDevice, nbytes: int) -> float:
    """Measure the bytes a second of a kernel that only reads."""
    each = min(nbytes, gpu.binding_bytes, 1 << 27)
    words = np.random.default_rng(1).integers(0, 1 << 32, each // 4, np.uint32)
    kernel, out = ShaderSource(STREAM, ()), gpu.buffer(16)
    held = copies(gpu, gpu.uploaded(words), max(1, nbytes // each))
    spent = []
    for groups in STREAM_GROUPS:
        listed = [_dispatch(gpu, kernel, {"data": b, "out": out}, (groups,)) for b in held]
        spent.append(seconds(gpu, listed * REPEATED))
    return REPEATED * each * len(held) / min(spent)


@dataclass
class ProductProbe:
    """A matrix [height, width] on the device, so many times that no cache holds it, and rows.

    Parameters
    ----------
    rows : of random 16-bit values. nbytes : of all copies together. layout : of the matrix.
    """

    gpu: GpuDevice
    height: int
    width: int
    rows: int
    nbytes: int
    layout: str = "w8"
    pitch: int = 0

    def __post_init__(self) -> None:
        sample = synthetic_weight(self.layout, "w", 0, (min(self.height, 1024), self.width))
        weight = sample.take(np.arange(self.height) % 1024)
        with Uploader(self.gpu, self.gpu.binding_bytes) as uploader:
            matrix: WgpuMatrix = uploader.matrix(weight, "w")
        self.matrix, self.form, self.part = matrix, matrix.form, matrix.parts[0]
        self.lines = self.part.stop
        values = np.random.default_rng(2).integers(-32512, 32513, (self.rows, self.width), np.int32)
        exponents = np.full(self.rows, -20, np.int32)
        records = records_of(Quantised(values, exponents), (self.width,))
        header = np.array([0, self.rows, self.rows, 1, 16, 16, 16, 0] + [0] * 8, np.uint32)
        self.shared = {
            "m": self.gpu.uploaded(header),
            "q": self.gpu.uploaded(records),
            "x": self.gpu.buffer(4 * self.rows * self.lines),
            "faults": self.gpu.buffer(4 * self.rows),
        }
        count = max(1, self.nbytes // (self.lines * self.width))
        self.codes = copies(self.gpu, self.part.codes, count)

    def _dispatches(self, kernel: ShaderSource, groups: Sequence[int]) -> list[EncodedDispatch]:
        part: MatrixSlice = self.part
        values = {
            "inner": 1,
            "start": 0,
            "stop": self.lines,
            "base": 0,
            "units": units_of(self.width),
            "q": 0,
            "pitch": self.pitch,
            "size": record_words(self.width),
            "n": self.lines,
            "slots": 1,
            "first0": 0,
            "out0": 0,
            "width0": self.lines,
            **words_beside(self.matrix, part),
        }
        words = np.array(kernel.words((0, 0, 0), [values]), np.uint32)
        buffers = {**self.shared, "p": self.gpu.uploaded(words), "s": part.side}
        return [_dispatch(self.gpu, kernel, {**buffers, "codes": c}, groups) for c in self.codes]

    def streamed(self, tuning: ProductTuning) -> float:
        """Measure the bytes of weights a second with few rows."""
        kernel = fast_kernel(self.form, self.gpu.dot, self.rows, tuning=tuning)
        groups = (-(-self.lines // tuning.lines),)
        spent = seconds(self.gpu, self._dispatches(kernel, groups) * REPEATED)
        return REPEATED * len(self.codes) * self.lines * self.width / spent

    def by_lanes(self) -> float:
        """Measure products of a 16-bit number and a code a second where a lane has an output."""
        kernel = product_kernel(self.form, self.gpu.dot, MANY, "one")
        return self._rate(
            self._dispatches(kernel, (-(-self.lines // LANES), -(-self.rows // MANY)))
        )

    def tiled(self, tuning: ProductTuning) -> float:
        """Measure them in tiles, the turning of the rows included."""
        tile = tile_of(self.form, tuning)
        assert tile is not None
        (rows, outputs), units = tile.size, units_of(self.width)
        self.pitch = -(-self.rows // rows) * rows
        self.shared["turned"] = self.gpu.buffer(4 * turned_words(tile, units, self.pitch))
        spread = spread_kernel(tile, self.gpu.dot)
        turned = self._dispatches(spread, (units, -(-self.rows // LANES)))[:1]
        groups = -(-self.lines // outputs), -(-self.rows // rows)
        return self._rate(turned + self._dispatches(tile_kernel(tile, self.gpu.dot, 1), groups))

    def _rate(self, listed: list[EncodedDispatch]) -> float:
        spent = seconds(self.gpu, listed * REPEATED, 3)
        return REPEATED * len(self.codes) * self.rows * self.lines * self.width / spent

    def result(self) -> np.ndarray:
        """Read the last result."""
        return self.gpu.download(self.shared["x"], 0, 4 * self.rows * self.lines)


def upload_rate(gpu: GpuDevice, layout: str, nbytes: int) -> float:
    """Measure the bytes of a file a second that are packed and put on the device."""
    sample = synthetic_weight(layout, "w", 0, (1024, 4096))
    weight = sample.take(np.arange(4096) % 1024)
    count = max(1, nbytes // weight.nbytes)
    start = time.perf_counter()
    with Uploader(gpu, gpu.binding_bytes) as uploader:
        held = [uploader.matrix(weight, "w") for _ in range(count)]
    gpu.download(held[-1].parts[-1].codes, 0, 4)
    return count * weight.nbytes / (time.perf_counter() - start)


def dispatch_seconds(
    plan: WgpuPlan, request: RequestedOutputs, rows: tuple[int, int], positions: tuple[int, int]
) -> dict[str, tuple[int, float]]:
    """Count a batch's dispatches of each kind, and measure their times.

    It must have been computed just before, of one sequence; its numbers are computed again.

    Parameters
    ----------
    rows : of the trunk, and of the tail. positions : the first and the last one.
    """
    parts = plan.parts_for(rows[0], *positions)
    kinds: dict[str, list[EncodedDispatch]] = {}
    for versions in plan.compiled(request).ready:
        count = rows[versions[0].work.tail]
        ready = versions[(count > 1) + (count > plan.few)]
        late = ready.work.begin and (parts > 1 or ready.work.begin > positions[1] // 1024)
        if count and ready.work.grid.x and not late:
            one = ready.pipeline, ready.group, ready.work.grid.groups(count, 1, parts)
            kinds.setdefault(kind_of(versions[0].work), []).append(one)
    nothing = seconds(plan.gpu, [])
    whole = [one for listed in kinds.values() for one in listed]
    kinds["all of them"] = whole
    return {
        kind: (len(listed), max(0.0, _repeated(plan.gpu, listed) - nothing))
        for kind, listed in kinds.items()
    }


def _repeated(gpu: GpuDevice, listed: list[EncodedDispatch]) -> float:
    return seconds(gpu, listed * REPEATED, 3) / REPEATED


def kind_of(work: Dispatch) -> str:
    """Return a dispatch's label, and the size of its matrix."""
    values = work.values[0]
    size = f" {values['n']} x {16 * values['units']}" if "units" in values else ""
    return work.label + size if "MatMul" in work.label else work.label
