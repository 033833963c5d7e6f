"""Build the native core; without a compiler the package still installs, and declines at run time.

No instruction set of the build machine is assumed: kernels name theirs, and the machine that runs
them chooses. Contraction is off because the contract rounds every product and every sum.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path(__file__).parent / "native"
FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno"]
FLAGS += ["-pthread", "-fvisibility=hidden", "-g0", "-Wall", "-Wextra"]
LINK = ["-pthread"]
OPTIONS = {"bdist_wheel": {"py_limited_api": "cp311"}}  # one wheel a platform
if os.name == "nt":  # the sources are GNU C, which Microsoft's compiler does not read
    OPTIONS["build_ext"] = {"compiler": "mingw32"}
    FLAGS.append("-Wa,-muse-unaligned-vector-move")  # stacks lie at 16 bytes
    LINK.append("-static")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ParallelBuild(build_ext):
    """Compiles the sources of an extension side by side, which setuptools does in turn."""

    def build_extension(self, extension: Extension) -> None:
        """Build one extension, a source a core at a time.

        What an earlier version built in the checkout under another name goes.
        """
        built = Path(self.get_ext_filename(extension.name)).name
        for left in (NATIVE.parent / "cortiq_cpu").glob("_native.*"):
            if left.name != built and left.suffix in (".so", ".pyd"):
                left.unlink()
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            """The object files of `sources`, in their order."""
            first = one_by_one(sources[:1], **options)  # makes the folders
            with ThreadPoolExecutor(_cores()) as workers:
                others = list(workers.map(lambda s: one_by_one([s], **options), sources[1:]))
            return first + [name for names in others for name in names]

        self.compiler.compile = compile_all
        try:
            super().build_extension(extension)
        finally:
            self.compiler.compile = one_by_one


def _sources() -> list[str]:
    """The C files: an empty module, then kernels, which take longest, then the rest."""
    names = sorted(path.name for path in NATIVE.glob("*.c") if path.name != "module.c")
    names.sort(key=lambda name: not name.startswith(("matmul_", "kernels_")))
    return [f"native/{name}" for name in ("module.c", *names)]


setup(
    cmdclass={"build_ext": ParallelBuild},
    options=OPTIONS,
    ext_modules=[
        Extension(
            "cortiq_cpu._native",
            sources=_sources(),
            depends=[
                *sorted(f"native/{path.name}" for path in NATIVE.glob("*.h")),
                "cortiq_cpu/include/cortiq_kernel.h",
            ],
            include_dirs=["native", "cortiq_cpu/include"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            extra_compile_args=FLAGS,
            extra_link_args=LINK,
            optional=True,
        )
    ],
)
