"""Build the native core; without a compiler the package still installs, and declines at run time.

No instruction set of the build machine is assumed: kernels name theirs, and the machine that runs
them chooses. Contraction is off because the contract rounds every product and every sum.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path(__file__).parent / "native"
FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno"]
FLAGS += ["-pthread", "-fvisibility=hidden", "-g0", "-Wall", "-Wextra"]

setup(
    ext_modules=[
        Extension(
            "cortiq_cpu._native",
            sources=sorted(f"native/{path.name}" for path in NATIVE.glob("*.c")),
            depends=sorted(f"native/{path.name}" for path in NATIVE.glob("*.h")),
            include_dirs=["native"],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
