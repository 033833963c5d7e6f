"""Kernels in CUDA C++, compiled by NVRTC, which PyTorch brings, and launched by the driver.

Binaries stay in Triton's folder on the disk, by source, options and compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

FLAGS = ("-std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")
"""Every operation rounds once, as IEEE 754 says."""
MOST_SHARED, COOPERATIVE = 8, 1


class NotCompiledError(RuntimeError):
    """A source that NVRTC refused, or no NVRTC at all."""


def _folders() -> list[Path]:
    """Return where packages of CUDA's libraries lie."""
    found = []
    for place in map(Path, sys.path):
        found += [*sorted(place.glob("nvidia/cu*/lib")), place / "nvidia/cuda_nvrtc/lib"]
    return found


@cache
def library() -> ctypes.CDLL:
    """NVRTC, the version that PyTorch was built for; its own helper library first."""
    major = (torch.version.cuda or "13").split(".")[0]
    for folder in _folders():
        for path in folder.glob(f"libnvrtc.so.{major}*"):
            for helper in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(helper), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    try:
        return ctypes.CDLL(f"libnvrtc.so.{major}")
    except OSError as error:
        raise NotCompiledError(f"no NVRTC of CUDA {major} is installed") from error


def _text(size: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    """Return what NVRTC says in two calls."""
    count = ctypes.c_size_t()
    size(program, ctypes.byref(count))
    text = ctypes.create_string_buffer(count.value)
    read(program, text)
    return text.raw


def _strings(values: list[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])


def compiled(name: str, sources: Mapping[str, str], options: list[str]) -> bytes:
    """The binary of the source `name`, which may include the others.

    Raises
    ------
    NotCompiledError : with what the compiler says.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    others = [other for other in sources if other != name]
    texts = _strings([sources[other] for other in others])
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), sources[name].encode(), name.encode(), len(others), texts,
        _strings(others),
    )  # fmt: skip
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
        if failed:
            said = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise NotCompiledError(said.decode(errors="replace").strip("\0\n"))
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def sources() -> dict[str, str]:
    """The package's CUDA sources, by name."""
    folder = files("cortiq_triton") / "cuda"
    found = (path for path in folder.iterdir() if path.name.endswith((".cu", ".cuh")))
    return {path.name: path.read_text(encoding="utf-8") for path in found}


def binary(name: str, constants: Mapping[str, int], architecture: str) -> bytes:
    """The binary of a source of the package, from the disk if it was compiled before."""
    version, texts = (ctypes.c_int(), ctypes.c_int()), sources()
    library().nvrtcVersion(*map(ctypes.byref, version))
    options = [f"--gpu-architecture={architecture}", *FLAGS]
    options += [f"-D{key}={value}" for key, value in constants.items()]
    facts = repr((name, sorted(texts.items()), options, [part.value for part in version]))
    home = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    place = Path(home) / f"cortiq-{hashlib.sha256(facts.encode()).hexdigest()}.cubin"
    if place.exists():
        return place.read_bytes()
    made = compiled(name, texts, options)
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(made)
    unfinished.replace(place)
    return made


@cache
def driver() -> ctypes.CDLL:
    """CUDA's driver."""
    return ctypes.CDLL("libcuda.so.1")


def checked(result: int) -> None:
    """Raise what the driver says of a call that failed."""
    if result:
        said = ctypes.c_char_p()
        driver().cuGetErrorString(result, ctypes.byref(said))
        raise RuntimeError(f"CUDA: {(said.value or b'unknown error').decode()}")


class Function:
    """A kernel on the current device, whose blocks are all on the machine at once.

    Attributes
    ----------
    blocks : how many are launched: as many as the device holds, at most one a processor.
    """

    def __init__(self, code: bytes, name: str, threads: int, shared: int) -> None:
        self.threads, self.shared = threads, shared
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        torch.cuda.current_stream()  # the device's context is there, and current
        checked(driver().cuModuleLoadData(ctypes.byref(self._module), code))
        checked(
            driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        )
        checked(driver().cuFuncSetAttribute(self._function, MOST_SHARED, shared))
        held = ctypes.c_int()
        checked(
            driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(held), self._function, threads, ctypes.c_size_t(shared)
            )
        )
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.blocks = facts.multi_processor_count * min(1, held.value)

    def launch(self, arguments: ctypes.Structure, blocks: int = 0) -> None:
        """Launch the kernel, on the current stream. blocks : that do not wait for one another; else
        as many as there are, which may.
        """
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        given = (
            self._function,
            blocks or self.blocks,
            1,
            1,
            self.threads,
            1,
            1,
            self.shared,
            stream,
        )
        if blocks:
            checked(driver().cuLaunchKernel(*given, parameters, None))
        else:
            checked(driver().cuLaunchCooperativeKernel(*given, parameters))
