"""Kernels of other packages: WGSL that computes one row of an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from cortiq.backend import Kernel
from cortiq.backend.lower import LoweredStep, PackageOp
from cortiq.backend.support import check_package_kernel
from cortiq.errors import BackendError
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.device import GpuDevice
from cortiq_wgpu.dispatch import NONE
from cortiq_wgpu.shader import RowShader
from cortiq_wgpu.shader_source import PARAMETER, ShaderSource, Stage, bits, stage


def check_shader(kernel: Kernel) -> None:
    """Refuse a kernel that is no `RowShader`, or is for an operator that takes none.

    Raises
    ------
    BackendError : which it is.
    """
    check_package_kernel(kernel, RowShader, "wgpu")


def package_stage(
    binder: DispatchBinder, step: LoweredStep
) -> list[tuple[Stage, Mapping[str, int]]]:
    """Return the stage of a package's kernel.

    Raises
    ------
    BackendError : its text names what is not there.
    """
    packaged: PackageOp = step.op
    shader: RowShader = packaged.kernel.function
    known = shader.constants(packaged.op)
    values = {n: v if isinstance(v, int) else bits(v) for n, v in known.items()}
    for what, names in (("input", step.inputs), ("output", step.outputs)):
        for number, name in enumerate(names):
            values[f"{what}{number}"] = binder.at(name)
            values[f"{what}{number}_n"] = binder.size(name)
    for role, shape in packaged.op.weight_shapes().items():
        values[role] = binder.vector(step, role, NONE)
        values[f"{role}_n"] = 0 if values[role] == NONE else prod(shape)
    unknown = sorted(set(PARAMETER.findall(shader.body)) - set(values))
    if unknown:
        what = f"the shader of {packaged.kernel.owner} names ${', $'.join(unknown)}"
        raise BackendError(what, hint=f"There are ${', $'.join(values)}.")
    return [(stage("package", BODY=shader.body), values)]


def compile_shaders(
    gpu: GpuDevice, group: Sequence[LoweredStep], kernels: Sequence[ShaderSource]
) -> None:
    """Compile the dispatches of a group now, so that an error in a package's text names it.

    Raises
    ------
    BackendError : with what the device says of the text.
    """
    packaged = (step.op for step in group if isinstance(step.op, PackageOp))
    owners = dict.fromkeys(op.kernel.owner for op in packaged)
    if not owners:
        return
    from wgpu import GPUError

    try:
        for kernel in kernels:
            gpu.pipeline(kernel)
    except GPUError as error:
        what = f"the shader of {', '.join(owners)} does not compile: {str(error).strip()}"
        raise BackendError(what) from None
