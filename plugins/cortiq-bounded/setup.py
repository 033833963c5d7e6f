"""Build the kernel in C; without a compiler or cortiq-cpu the package installs without it.

Contraction is off because the contract rounds every product and every sum.
"""

from __future__ import annotations

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-g0"]


def extensions() -> list[Extension]:
    """Return the extension, where the header of cortiq-cpu is installed."""
    try:
        from cortiq_cpu import INCLUDE
    except ImportError:
        return []
    source, place = "cortiq_bounded/nystrom.c", [str(INCLUDE)]
    return [
        Extension("cortiq_bounded._nystrom", [source], include_dirs=place, extra_compile_args=FLAGS,
                  libraries=["m"], optional=True)
    ]  # fmt: skip


setup(ext_modules=extensions())
