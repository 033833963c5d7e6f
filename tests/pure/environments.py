"""Fresh environments, as a newcomer has them, made without any network."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path


def fresh_python(home: Path) -> Path:
    """The Python of a new environment in a folder.

    It sees what this one has installed, entry points and editable packages included.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = next(home.glob("lib/python*/site-packages"))
    seen = [path for path in site.getsitepackages() if Path(path).is_dir()]
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in seen)
    (packages / "outer.pth").write_text(lines)
    return home / "bin" / "python"


def install(python: Path, project: Path) -> None:
    """Install as `pip install -e` does, without fetching anything."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "-e", str(project)]
    subprocess.run([*pip, *offline], check=True)


def run_in(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run that Python in a folder, without cortiq's variables of this process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CORTIQ_", "PYTEST"))}
    environment["OMP_NUM_THREADS"] = "1"
    command = [str(python), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
