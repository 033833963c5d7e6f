"""`tools/core_wheels.py`: a wheel without the compiled library is not published."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "core_wheels.py"


@pytest.mark.parametrize(
    ("tag", "library", "right"),
    [
        ("cp311-abi3-manylinux_2_17_aarch64", True, True),
        ("cp311-abi3-manylinux_2_17_aarch64", False, False),
        ("cp311-cp311-linux_x86_64", True, False),
    ],
)
def test_wheels_of_the_core(tmp_path, tag, library, right):
    wheel = tmp_path / f"cortiq_cpu-0.1.0-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("cortiq_cpu/native.py", "")
        if library:
            archive.writestr("cortiq_cpu/_native.abi3.so", "")
    done = subprocess.run([sys.executable, TOOL, wheel], capture_output=True, text=True)
    assert (done.returncode == 0) == right, done.stdout
