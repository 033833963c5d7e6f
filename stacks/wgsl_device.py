"""Runs a WGSL kernel once: compose the source, upload, dispatch, read back.

The contract's constants and scalar functions are those of the wgpu backend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import wgpu

from cortiq_wgpu.source import constants
from cortiq_wgpu.source import source as of_backend
from stacks.base import Array

WIDEST = 32768
"""Workgroups in one dimension; more go into the second."""


@cache
def source(name: str) -> str:
    """The text of wgsl/NAME.wgsl."""
    return (files("stacks") / "wgsl" / f"{name}.wgsl").read_text("utf-8")


def words(array: Array) -> Array:
    """An array as the 32-bit words a shader reads; int8 is packed four to a word, zero-padded."""
    flat = np.ascontiguousarray(array).ravel()
    if flat.dtype.itemsize == 4:
        return flat.view(np.uint32)
    assert flat.dtype.itemsize == 1, flat.dtype
    return np.pad(flat.view(np.uint8), (0, -flat.size % 4)).view(np.uint32)


def word(value: int | np.float32) -> Array:
    """One parameter as a word: a float as its bits."""
    kind = np.float32 if isinstance(value, np.floating) else np.int32
    return words(np.array([value], kind))


def narrow(values: Array) -> Array:
    """int32 results as int8; a value that does not fit is an error, never a wrap."""
    out = values.astype(np.int8)
    if (out != values).any():
        raise ArithmeticError("a plane holds a value outside int8")
    return out


@dataclass
class Device:
    """A WebGPU device and its compiled pipelines, by source text."""

    device: Any
    pipelines: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def pipeline(self, text: str, kinds: tuple[str, ...]) -> tuple[Any, Any]:
        """Compile once; `kinds` are the buffer types of the bindings, in order."""
        if text not in self.pipelines:
            entries = [
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
            layout = self.device.create_bind_group_layout(entries=entries)
            whole = self.device.create_pipeline_layout(bind_group_layouts=[layout])
            module = self.device.create_shader_module(code=text)
            stage = {"module": module, "entry_point": "main"}
            pipeline = self.device.create_compute_pipeline(layout=whole, compute=stage)
            self.pipelines[text] = pipeline, layout
        return self.pipelines[text]

    def buffer(self, data: Array) -> Any:
        """A storage buffer holding the words of an array; never empty."""
        data = words(data) if data.size else np.zeros(1, np.uint32)
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        return self.device.create_buffer_with_data(data=data, usage=usage)

    def dispatch(
        self,
        body: str,
        parameters: tuple[int | np.float32, ...],
        inputs: Mapping[str, Array],
        outputs: Mapping[str, tuple[tuple[int, ...], Any]],
        groups: int,
    ) -> list[Array]:
        """Run the kernel `body` (WGSL with `fn main`) on `groups` workgroups.

        Buffers are declared under the names given: `p` (a zero, then the parameters; floats as
        bits), inputs, outputs. Outputs are poisoned, and come back as (shape, dtype) says.
        """
        p = np.concatenate([words(np.zeros(1, np.uint32)), *map(word, parameters)])
        poison = [np.full(math.prod(shape), 77, np.uint32) for shape, _ in outputs.values()]
        buffers = [self.buffer(a) for a in (p, *inputs.values(), *poison)]
        kinds = ("read-only-storage",) * (1 + len(inputs)) + ("storage",) * len(outputs)
        functions = source("prelude") + constants() + of_backend("scalar")
        text = declarations(("p", *inputs), tuple(outputs)) + functions + body
        pipeline, layout = self.pipeline(text, kinds)
        bound = [{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(buffers)]
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, self.device.create_bind_group(layout=layout, entries=bound))
        compute.dispatch_workgroups(min(groups, WIDEST), -(-groups // WIDEST), 1)
        compute.end()
        self.device.queue.submit([encoder.finish()])
        return [
            self.read(buffer, shape, dtype)
            for buffer, (shape, dtype) in zip(
                buffers[1 + len(inputs) :], outputs.values(), strict=True
            )
        ]

    def read(self, buffer: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        """A buffer's words as an array of a 32-bit dtype."""
        data = np.frombuffer(self.device.queue.read_buffer(buffer), np.uint32)
        return data[: math.prod(shape)].view(dtype).reshape(shape).copy()


def declarations(inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    """Bindings 0, 1, … of group 0, inputs then outputs, all arrays of words."""
    names = [(name, "read") for name in inputs] + [(name, "read_write") for name in outputs]
    lines = [
        f"@group(0) @binding({i}) var<storage, {access}> {name}: array<u32>;"
        for i, (name, access) in enumerate(names)
    ]
    return "\n".join(lines) + "\n"
