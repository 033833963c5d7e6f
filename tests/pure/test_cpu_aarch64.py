"""The kernels and golden digests of aarch64, emulated: `tools/qemu_aarch64.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LACKING = 77


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["cortex-a72", "neoverse-n1", "max"])
def test_every_kernel_gives_the_contracts_bits_and_conformance_the_golden_digests(processor):
    command = [sys.executable, str(ROOT / "tools/qemu_aarch64.py"), "--processors", processor]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == LACKING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "passed" in done.stdout.splitlines()[-1]
