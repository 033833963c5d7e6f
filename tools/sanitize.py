"""Run the native core's tests under AddressSanitizer and UndefinedBehaviorSanitizer.

    python tools/sanitize.py [PYTEST ARGUMENTS]

Builds the core with both sanitizers, then runs the tests of its kernels and conformance levels 0
and 1 on every instruction set of this machine. NumPy's buffers come from malloc, so that a kernel
that reads or writes beyond one is found. The first report ends the run with exit code 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from native_core import ROOT, build

FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FLAGS += ("-fno-omit-frame-pointer",)
TESTS = ROOT / "tests" / "pure"


def runtime() -> str:
    """Return the path of the sanitizer's runtime, which must be loaded before Python."""
    compiler = os.environ.get("CC", "cc").split()
    command = [*compiler, "-print-file-name=libasan.so"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Build, test, and return the exit code of the first command that failed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "CORTIQ_CPU_NATIVE": str(build(Path(folder), FLAGS)),
            "LD_PRELOAD": runtime(),
            # Python itself frees little at its end, and a leak is no fault of a kernel. GCC 13 puts
            # vectors of 64 bytes at addresses of 32 on the stack that it checks after a return
            # (its bug 110027): they crash where nothing is wrong.
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
        }
        chosen = sys.argv[1:] or [str(path) for path in sorted(TESTS.glob("test_cpu_*.py"))]
        commands = [["-m", "pytest", "-p", "no:cacheprovider", *chosen]]
        commands.append(["-m", "cortiq", "conform", "--backend", "cpu", "--level", "1"])
        for command in commands:
            done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
