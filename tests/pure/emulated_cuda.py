"""Kernels of `cortiq_triton/cuda` compiled for the CPU: each thread of the grid is a coroutine."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

import cortiq_triton

CUDA = Path(cortiq_triton.__file__).parent / "cuda"
EMULATOR = Path(__file__).parents[1] / "cuda"


def built(folder, source, entry, constants):
    """Compile a kernel with compile-time constants; skip the test without a compiler."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = folder / f"{entry}.so"
    defined = {**constants, "SOURCE": f'"{source}"', "ENTRY": entry}
    command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing"]
    command += ["-shared", "-fPIC", f"-I{EMULATOR}", f"-I{CUDA}"]
    command += [f"-D{name}={value}" for name, value in defined.items()]
    subprocess.run([*command, EMULATOR / "emulator.cpp", "-o", path], check=True)
    return path


class Emulated:
    """A kernel on the CPU.

    blocks : of its grid, at most. launches : how often it was launched.
    """

    def __init__(self, path, blocks, threads, shared):
        self.blocks, self.sizes, self.launches = blocks, (threads, shared), 0
        self.library = ctypes.CDLL(str(path))

    def launch(self, arguments, blocks=0):
        self.launches += 1
        rounds = self.library.run_kernel(
            ctypes.byref(arguments), blocks or self.blocks, *self.sizes
        )
        assert rounds > 0, "every thread waits for another"
