"""A WebGPU device: buffers, pipelines compiled once, uploads and downloads."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cortiq.errors import BackendError
from cortiq_wgpu.shader_source import NATIVE_DOT, PORTABLE_DOT, ShaderSource

UPLOAD_BYTES = 16 << 20
"""Bytes that wait for the device at a time while weights are uploaded."""
DEFAULT_LIMITS = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroups-per-dimension": 65535,
    "min-storage-buffer-offset-alignment": 256,
}
"""What every WebGPU device has: asked for and no more, so that no kernel comes to need more. How
large buffers may be is the adapter's to say."""
SLICE = 256
"""Alignment of parameters in their buffer: what every device accepts."""


class DeviceLostError(BackendError):
    """The device is gone: what ran on it failed, and the next request opens it again."""


class GpuDevice:
    """An open device.

    Attributes
    ----------
    name : of the adapter, as `cortiq backends` lists it. info : what wgpu says of it.
    software : whether it is a processor that computes, not a GPU.
    binding_bytes : the largest buffer that a kernel can see.
    dot : WGSL of the dot product of four bytes that the self test has found right here.
    """

    def __init__(self, name: str, adapter: Any) -> None:
        import wgpu

        logging.getLogger("wgpu").setLevel(logging.CRITICAL)  # errors are raised, not printed
        self._flags = wgpu.BufferUsage
        self.name, self.info = name, dict(adapter.info)
        self.software = self.info["adapter_type"] == "CPU"
        self.device = adapter.request_device_sync(required_limits=dict(DEFAULT_LIMITS))
        limits = self.device.limits
        largest = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
        self.binding_bytes = int(largest) // SLICE * SLICE
        self.dot = NATIVE_DOT
        self._pipelines: dict[str, tuple[Any, Any]] = {}

    def use_portable_dot(self) -> None:
        """Multiply bytes by shifts from now on."""
        self.dot = PORTABLE_DOT

    def pipeline(self, kernel: ShaderSource) -> tuple[Any, Any]:
        """Return the compiled kernel and the layout of its buffers."""
        found = self._pipelines.get(kernel.text)
        if found is None:
            found = self._pipelines[kernel.text] = self._compiled(kernel)
        return found

    def _compiled(self, kernel: ShaderSource) -> tuple[Any, Any]:
        import wgpu

        kinds = ("read-only-storage", "storage")
        entries = [
            {
                "binding": number,
                "visibility": wgpu.ShaderStage.COMPUTE,
                "buffer": {"type": kinds[written]},
            }
            for number, _, written in kernel.bindings
        ]
        layout = self.device.create_bind_group_layout(entries=entries)
        whole = self.device.create_pipeline_layout(bind_group_layouts=[layout])
        module = self.device.create_shader_module(code=kernel.text)
        compute = {"module": module, "entry_point": "main"}
        return self.device.create_compute_pipeline(layout=whole, compute=compute), layout

    def bound(self, kernel: ShaderSource, buffers: Mapping[str, Any]) -> Any:
        """Make a bind group of buffers, or of (buffer, offset, size), by the kernel's names."""
        _, layout = self.pipeline(kernel)
        entries = []
        for number, name, _ in kernel.bindings:
            buffer, offset, size = _whole(buffers[name])
            resource = {"buffer": buffer, "offset": offset, "size": size}
            entries.append({"binding": number, "resource": resource})
        return self.device.create_bind_group(layout=layout, entries=entries)

    def buffer(self, nbytes: int) -> Any:
        """Allocate zeroed memory that kernels see.

        Raises
        ------
        BackendError : more than a kernel can see at once.
        """
        if nbytes > self.binding_bytes:
            raise BackendError(
                f"{nbytes} bytes in one buffer, {self.name} has {self.binding_bytes}",
                hint="Use a smaller context or batch.",
            )
        usage = self._flags.STORAGE | self._flags.COPY_SRC | self._flags.COPY_DST
        return self.device.create_buffer(size=max(16, -(-nbytes // 16) * 16), usage=usage)

    def uploaded(self, array: np.ndarray) -> Any:
        """Allocate a buffer with an array's bytes."""
        buffer = self.buffer(array.nbytes)
        self.upload(buffer, 0, array)
        return buffer

    def upload(self, buffer: Any, offset: int, array: np.ndarray) -> None:
        """Write an array's bytes, piece by piece, so that little waits in between."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if flat.size % 4:
            flat = np.pad(flat, (0, -flat.size % 4))
        for start in range(0, flat.size, UPLOAD_BYTES):
            piece = flat[start : start + UPLOAD_BYTES]
            self.device.queue.write_buffer(buffer, offset + start, piece)
            if flat.size > UPLOAD_BYTES:
                self.device.queue.submit([])

    def staging(self, nbytes: int) -> Any:
        """Allocate memory that the host writes, mapped, for the device to copy from."""
        usage = self._flags.MAP_WRITE | self._flags.COPY_SRC
        return self.device.create_buffer(size=nbytes, usage=usage, mapped_at_creation=True)

    def readable(self, nbytes: int) -> Any:
        """Allocate memory that the host reads."""
        usage = self._flags.MAP_READ | self._flags.COPY_DST
        return self.device.create_buffer(size=max(16, -(-nbytes // 16) * 16), usage=usage)

    def read(self, readable: Any, nbytes: int) -> np.ndarray:
        """Read words of readable memory, once what was submitted is done."""
        readable.map_sync("READ", 0, readable.size)
        data = np.frombuffer(readable.read_mapped(copy=True), np.uint32)
        readable.unmap()
        return data[: nbytes // 4]

    def download(self, buffer: Any, offset: int, nbytes: int) -> np.ndarray:
        """Read words of a buffer."""
        if not nbytes:
            return np.zeros(0, np.uint32)
        data = self.device.queue.read_buffer(buffer, offset, nbytes)
        return np.frombuffer(data, np.uint32).copy()

    def run(self, kernel: ShaderSource, buffers: Mapping[str, Any], groups: Sequence[int]) -> None:
        """Run one dispatch by itself."""
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self.pipeline(kernel)[0])
        compute.set_bind_group(0, self.bound(kernel, buffers))
        compute.dispatch_workgroups(*groups)
        compute.end()
        self.device.queue.submit([encoder.finish()])

    def answers(self) -> bool:
        """Check whether the device still computes."""
        try:
            probe = self.uploaded(np.array([7], np.uint32))
            return int(self.download(probe, 0, 4)[0]) == 7
        except Exception:  # whatever a lost device raises
            return False

    def close(self) -> None:
        """Release the device."""
        self._pipelines = {}
        self.device.destroy()


def _whole(buffer: Any) -> tuple[Any, int, int]:
    return buffer if isinstance(buffer, tuple) else (buffer, 0, buffer.size)
