"""The host's part of a step, in calls of functions: no other work on the machine changes these."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

MOST = 140
"""Calls of a row that decodes greedily, from the engine to the executable and back."""
MORE = {"temperature": 0, "filters": 0, "penalties": 20, "masks": 45}
"""Calls that draws add."""


def test_a_row_costs_few_calls_and_draws_hardly_more():
    probe = Path(__file__).with_name("host_probe.py")
    done = subprocess.run([sys.executable, probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    assert found["greedy"] <= MOST
    assert all(found[name] <= found["greedy"] + more for name, more in MORE.items()), found
