"""Run the CPU core's tests and conformance on an emulated aarch64 (qemu-user).

    python tools/qemu_aarch64.py [--processors max …] [--level 2] [--tests …] [--folder FOLDER]

Cross-compiles the native core, unpacks Python for arm64 from the packages of this Debian or Ubuntu
into FOLDER (nothing of the system changes), installs NumPy and the like for aarch64 beside it, and
then, on each processor, runs the tests of the kernels of its best instruction set and conformance
up to the level against the golden digests. What is in FOLDER already is used again. Exit code 1 if
a test or a case failed; 77 where a program that this needs is missing.

An emulator shows bits, not speed: its rates say nothing about a processor.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from native_core import ROOT, build

PROGRAMS = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu", "qemu-aarch64": "qemu-user",
    "apt-get": "apt", "dpkg-deb": "dpkg",
}  # fmt: skip
"""What this needs, and the packages that have it."""
PROCESSORS = {"cortex-a72": "neon", "neoverse-n1": "neon-dotprod", "max": "neon-i8mm"}
"""Processors that are emulated, and the best instruction set of each."""
PARTS = (".", "backends/reference", "backends/cpu", "conformance")
FOREIGN = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
TESTED_WITH = ("threadpoolctl", "pytest", "gguf", "hypothesis")
TESTS = ("matmul", "matrices", "narrow", "attention", "blocks", "keys", "kernels", "tail")
TESTS += ("recurrences", "isa")
PORTS = "deb http://ports.ubuntu.com/ubuntu-ports {0} main universe\n"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux2014_aarch64")
LACKING = 77


def lacking() -> str | None:
    """Return what keeps this from running here, or None."""
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not missing:
        return None
    return f"install {', '.join(missing)} to run kernels of aarch64 in an emulator"


def _apt(folder: Path) -> dict[str, str]:
    """Return the environment of an apt for arm64 that keeps what it has in the folder."""
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    lines = [
        'APT::Architecture "arm64";', 'APT::Architectures { "arm64"; };',
        f'Dir::State "{folder}";', f'Dir::State::status "{folder}/status";',
        f'Dir::Cache "{folder}";',
    ]  # fmt: skip
    system = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().split("\n")
        if "=" in line
    )
    if system.get("ID") == "ubuntu":  # whose arm64 lies on servers of its own
        listed = folder / "sources.list"
        listed.write_text(PORTS.format(system["VERSION_CODENAME"]))
        lines += [f'Dir::Etc::sourcelist "{listed}";', 'Dir::Etc::sourceparts "-";']
    (folder / "apt.conf").write_text("\n".join(lines) + "\n")
    return os.environ | {"APT_CONFIG": str(folder / "apt.conf")}


def unpacked(folder: Path) -> Path:
    """Return a folder with arm64's C library and Python, unpacked where it is not there yet."""
    root = folder / "root"
    if not root.exists():
        apt = _apt(folder / "apt")
        subprocess.run(["apt-get", "-q", "update"], env=apt, check=True)
        words = ("-q", "-y", "--no-install-recommends", "--download-only", "install", *FOREIGN)
        subprocess.run(["apt-get", *words], env=apt, check=True)
        part = folder / "part"
        for package in sorted((folder / "apt/archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(part)], check=True)
        if not (part / "lib").exists():  # where it is /usr/lib
            (part / "lib").symlink_to("usr/lib")
        part.rename(root)
    return root


def _python(root: Path) -> Path:
    return next(p for p in sorted((root / "usr/bin").glob("python3.*")) if p.name[8:].isdigit())


def _projects() -> list[dict]:
    return [
        tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"] for part in PARTS
    ]


def _describe(project: Mapping, folder: Path) -> None:
    """Write what entry points are found by, since the checkout's packages are not installed."""
    name = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    (folder / name).mkdir(exist_ok=True)
    words = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (folder / name / "METADATA").write_text(words)
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (folder / name / "entry_points.txt").write_text("\n".join(lines) + "\n")


def installed(folder: Path, python: Path) -> Path:
    """Return a folder with what the checkout's packages need, for aarch64 and this Python."""
    site = folder / "site"
    if not site.exists():
        needed = [line for line in _projects()[0]["dependencies"] if not line.startswith("cortiq")]
        platforms = [word for one in PLATFORMS for word in ("--platform", one)]
        command = [sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:", *platforms]
        command += ["--python-version", python.name[6:], "--target", str(folder / "site.part")]
        subprocess.run([*command, *needed, *TESTED_WITH], check=True)
        (folder / "site.part").rename(site)
    for project in _projects():
        _describe(project, site)
    return site


def emulated(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Build what is missing; return the command of an emulated Python, and its environment."""
    folder.mkdir(parents=True, exist_ok=True)
    objects = folder / "objects"
    objects.mkdir(exist_ok=True)
    library = build(objects, (), "aarch64-linux-gnu-gcc")
    root = unpacked(folder)
    python = _python(root)
    paths = [*(str(ROOT / part) for part in PARTS), str(installed(folder, python))]
    environment = {
        "QEMU_LD_PREFIX": str(root), "PYTHONPATH": os.pathsep.join(paths),
        "CORTIQ_CPU_NATIVE": str(library), "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    return ["qemu-aarch64", str(python)], os.environ | environment


def examined(
    processor: str, level: int, tests: Sequence[str], python: Sequence[str],
    environment: Mapping[str, str],
) -> bool:  # fmt: skip
    """Test kernels and conformance on an emulated processor; return whether all passed."""
    isa, model = PROCESSORS[processor], processor + (",pauth-impdef=on" * (processor == "max"))
    forced = {**environment, "QEMU_CPU": model, "CORTIQ_CPU_ISA": isa}
    files = [f"tests/pure/test_cpu_{name}.py" for name in tests]
    named = f"{isa} or test_cpu_isa or test_cpu_narrow"
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", named]
    commands = [[*pytest, *files]] if files else []
    if level >= 0:
        commands.append(["-m", "cortiq", "conform", "--backend", "cpu", "--level", str(level)])
    passed = True
    for command in commands:
        print(f"{processor}, {isa}: python {' '.join(command)}", flush=True)
        done = subprocess.run([*python, *command], cwd=ROOT, env=forced, check=False)
        passed = passed and done.returncode == 0
    return passed


def main() -> int:
    """Examine each processor; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processors", nargs="*", choices=PROCESSORS, default=list(PROCESSORS))
    parser.add_argument("--level", type=int, default=2, help="of conformance; −1: none")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="of tests/pure/test_cpu_*")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "aarch64")
    given = parser.parse_args()
    if reason := lacking():
        print(reason)
        return LACKING
    python, environment = emulated(given.folder.resolve())
    results = {
        name: examined(name, given.level, given.tests, python, environment)
        for name in given.processors
    }
    for name, passed in results.items():
        print(f"{name:12} {PROCESSORS[name]:14} {'passed' if passed else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
