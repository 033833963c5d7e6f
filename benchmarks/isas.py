"""Instruction sets of one machine beside each other: built, tested and measured by one command.

    python benchmarks/isas.py [--isas avx512vnni amx] [--cpus 0,1] [--models …] [--quick]

Builds the native core from this checkout with the compiler at hand, then for each instruction set
runs the tests of its kernels, conformance up to level 2, and `cortiq bench` (beside llama.cpp where
llama-cpp-python is installed), all on the processors named. Kernel rates come from
`cpu_kernels.py`. The last thing printed is a short table; what failed is in it. Exit code 1 if a
test or a case did.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from native_core import build  # noqa: E402

PACKAGES = (".", "backends/reference", "backends/cpu", "conformance")
KERNEL_TESTS = tuple(f"tests/pure/test_cpu_{n}.py" for n in ("matmul", "matrices", "attention"))
LAYOUTS = ("Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "w8", "w16")
MODELS = ("smollm2", "gemma3-270m")


def run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a Python command in the checkout; show its output and return it."""
    print("$ python", " ".join(arguments), flush=True)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, text=True, capture_output=True
    )
    tail = (done.stdout + done.stderr).strip().splitlines()[-60:]
    print("\n".join(tail), flush=True)
    return done


def environment_of(library: Path, isa: str) -> dict[str, str]:
    """Return the checkout's packages, this library and this instruction set."""
    paths = [str(ROOT / package) for package in PACKAGES]
    paths += [path for path in (os.environ.get("PYTHONPATH"),) if path]
    forced = {"CORTIQ_CPU_NATIVE": str(library), "CORTIQ_CPU_ISA": isa}
    return os.environ | forced | {"PYTHONPATH": os.pathsep.join(paths)}


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a command's output."""
    return ((done.stdout or done.stderr).strip().splitlines() or ["nothing said"])[-1]


def measured(model: str, options: argparse.Namespace, environment: dict[str, str]) -> str:
    """Run `cortiq bench` on one model; return one line: tokens per second, ratios to llama.cpp."""
    arguments = ["-m", "cortiq", "bench", model, "--backend", "cpu", "--json"]
    arguments += ["--repeats", "3" if options.quick else "5"]
    if find_spec("llama_cpp"):
        arguments += ["--against", "llama.cpp"]
    done = run(arguments, environment)
    if done.returncode:
        return f"failed: {last_line(done)}"
    facts: dict[str, Any] = json.loads(done.stdout)
    speeds = facts["tokens_per_second"]["cortiq"]
    text = [f"{part} {speeds[part]['median']:.0f}" for part in ("prefill", "decode")]
    ratios = [f"{part} {ratio:.2f}" for part, ratio in facts["ratio"].items()]
    return ", ".join(text) + (f" tokens/s; to llama.cpp: {', '.join(ratios)}" if ratios else "")


def examined(isa: str, options: argparse.Namespace, library: Path) -> list[tuple[str, bool, str]]:
    """Return (what, whether it passed, in words) of one instruction set."""
    environment = environment_of(library, isa)
    lines = []
    tests = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", *KERNEL_TESTS], environment)
    lines.append(("kernel tests", not tests.returncode, f"exit code {tests.returncode}"))
    conform = run(["-m", "cortiq", "conform", "--backend", "cpu", "--level", "2"], environment)
    lines.append(("conformance", not conform.returncode, last_line(conform)))
    kernels = run(["benchmarks/cpu_kernels.py", "--layouts", *LAYOUTS], environment)
    lines.append(("kernels", not kernels.returncode, f"exit code {kernels.returncode}"))
    for model in options.models:
        text = measured(model, options, environment)
        lines.append((model, not text.startswith("failed"), text))
        if not options.quick:
            profile = ["-m", "cortiq", "bench", model, "--backend", "cpu", "--profile"]
            run([*profile, "--repeats", "1"], environment)
    return lines


def main() -> None:
    """Build, examine each instruction set, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isas", nargs="*", default=["avx512vnni", "amx"])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--cpus", help="processors to use, as in 0,1; the first two by default")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, no profiles")
    options = parser.parse_args()
    allowed = sorted(os.sched_getaffinity(0))
    cpus = [int(n) for n in options.cpus.split(",")] if options.cpus else allowed[:2]
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        os.sched_setaffinity(0, cpus)
        tables = {isa: examined(isa, options, library) for isa in options.isas}
    print(f"\nprocessors {cpus} of {len(allowed)}")
    for isa, lines in tables.items():
        for what, passed, text in lines:
            print(f"{isa:12} {what:14} {'' if passed else 'FAILED: '}{text}")
    sys.exit(not all(passed for lines in tables.values() for _, passed, _ in lines))


if __name__ == "__main__":
    main()
