"""Install the wheels of a folder into a fresh environment, and use them as a newcomer would.

First the core alone, whose errors must say what to install; then everything: the backends are
found, text is generated with the same digest on each, a receipt verifies, and the harness runs.
Exit 1 at the first thing that is not so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CORE = "cortiq-"
FIRST = ("cortiq_reference-", "cortiq_cpu-", "cortiq_conformance-")
"""Distributions whose wheels are installed and used; those of plugins must only be there."""
MODEL = "synthetic:tiny-llama"


class WrongError(Exception):
    """A wheel does not work as it should."""


def expect(holds: object, what: str) -> None:
    """Raise WrongError unless the condition holds."""
    if not holds:
        raise WrongError(what)


class Environment:
    """A fresh virtual environment, isolated from the caller's."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python, self.cortiq, self.folder = scripts / "python", scripts / "cortiq", folder
        hidden = ("CORTIQ_", "PYTHON")
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self.variables["CORTIQ_CACHE"] = str(folder / "cache")

    def run(self, *words: str | Path, code: int = 0) -> str:
        """Run a command that must end with this exit code; return its output."""
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, check=False,
            env=self.variables, cwd=self.folder,
        )  # fmt: skip
        said = f"{' '.join(map(str, words))} ended with {done.returncode}:\n"
        expect(done.returncode == code, f"{said}{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def install(self, *what: str | Path) -> None:
        """Install with pip."""
        self.run(self.python, "-m", "pip", "install", "--quiet", *what)


def wheel_of(wheels: list[Path], prefix: str) -> Path:
    """Return the one wheel whose name starts with `name`."""
    found = [wheel for wheel in wheels if wheel.name.startswith(prefix)]
    expect(len(found) == 1, f"wheels named {prefix}*: {[wheel.name for wheel in found]}")
    return found[0]


def requirements(environment: Environment) -> list[str]:
    """Return the core's requirements, except this project's own distributions."""
    script = "import importlib.metadata as m, json; print(json.dumps(m.requires('cortiq')))"
    needed = json.loads(environment.run(environment.python, "-c", script))
    return [line for line in needed if ";" not in line and not line.startswith("cortiq")]


def check_core(environment: Environment, core: Path) -> None:
    """Check that the core works alone and reports what is missing."""
    environment.install("--no-deps", core)
    environment.install(*requirements(environment), "threadpoolctl")
    cortiq = environment.cortiq
    expect("Commands" in environment.run(cortiq, "--help"), "no help")
    expect("pip install cortiq-reference" in environment.run(cortiq, "backends"), "no hint")
    said = environment.run(cortiq, "generate", MODEL, "-p", "ab", code=2)
    expect("no backend is available" in said and "pip install cortiq-reference" in said, said)
    said = environment.run(cortiq, "conform", "--backend", "cpu", code=2)
    expect("pip install 'cortiq[conformance]'" in said, said)


def check_all(environment: Environment, wheels: list[Path]) -> None:
    """Check all packages together."""
    environment.install(*wheels)
    environment.run(environment.python, "-m", "pip", "check")
    cortiq, digests = environment.cortiq, set()
    listed = environment.run(cortiq, "backends")
    expect("not loaded" not in listed, listed)
    for backend in ("reference", "cpu"):
        words = ("-p", "ab", "-n", "8", "--ignore-eos", "--backend", backend, "--json")
        receipt = ("--receipt", f"{backend}.json")
        made = json.loads(environment.run(cortiq, "generate", MODEL, *words, *receipt))
        expect(made["placement"].keys() == {backend}, f"{backend}: {made['placement']}")
        digests.add(made["digest"])
    expect(len(digests) == 1, f"two backends, two digests: {digests}")
    for maker, checker in (("reference", "cpu"), ("cpu", "reference")):
        environment.run(cortiq, "verify", f"{maker}.json", "--backend", checker)
    environment.run(cortiq, "conform", "--backend", "cpu", "--level", "0", "--only", "RMSNorm")


def main() -> int:
    """Check the wheels of the folder that is named."""
    wheels = sorted(Path(sys.argv[1]).resolve().glob("*.whl"))
    try:
        core = wheel_of(wheels, CORE)
        others = [wheel_of(wheels, prefix) for prefix in FIRST]
        with tempfile.TemporaryDirectory() as folder:
            environment = Environment(Path(folder) / "environment")
            check_core(environment, core)
            check_all(environment, others)
    except WrongError as error:
        print(error)
        return 1
    print(f"{len(wheels)} wheels: {', '.join(wheel.name for wheel in wheels)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
