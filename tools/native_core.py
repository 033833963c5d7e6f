"""Build the CPU backend's native core outside the package: other flags, no setuptools."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-pthread")
FLAGS += ("-fPIC", "-fvisibility=hidden")


def build(folder: Path, extra: Sequence[str] = (), compiler: str | None = None) -> Path:
    """Compile the sources as backends/cpu/setup.py does, and link them into a library.

    Parameters
    ----------
    folder : gets the object files and the library.
    extra : flags after the ordinary ones, of the compiler and of the linker.
    compiler : its command; by default $CC, or cc.

    Raises
    ------
    subprocess.CalledProcessError : the compiler refused a source.
    """
    package = ROOT / "backends/cpu"
    sources = [p for p in (package / "native").glob("*.c") if p.name != "module.c"]
    headers = f"-I{package / 'cortiq_cpu/include'}"
    command = (compiler or os.environ.get("CC", "cc")).split()

    def compiled(source: Path) -> str:
        target = folder / f"{source.stem}.o"
        words = [*command, *FLAGS, headers, *extra, "-c", str(source), "-o", str(target)]
        subprocess.run(words, check=True)
        return str(target)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        objects = list(workers.map(compiled, sources))
    library = folder / "_native.so"
    subprocess.run(
        [*command, *extra, "-shared", "-pthread", "-o", str(library), *objects], check=True
    )
    return library
