"""Memory that a model takes on the reference beyond its own file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from work import HANG_SECONDS

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "reference.py"
MOST = 1.6


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured through /proc")
@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma3_path"])
def test_resident_growth_of_a_prompt_and_some_steps(request, fixture):
    """From "tokenizer loaded" to 64 tokens prefilled and 8 decoded, at its peak, two threads."""
    path = request.getfixturevalue(fixture)
    command = [sys.executable, str(BENCHMARK), "--figure", "resident", "--threads", "2", str(path)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert made.returncode == 0, made.stderr
    figures = json.loads(made.stdout)
    assert figures["file MiB"] == pytest.approx(path.stat().st_size / 2**20)
    # All weights were read: less would mean that the measurement missed the mapped file.
    assert 0.9 < figures["resident growth"] <= figures["peak growth"] < MOST
