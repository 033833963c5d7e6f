"""The soak of `benchmarks/soak.py`, scaled down: many clients, two models, room for one, a kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = "synthetic:mini-qwen3?seed=1&format=w8,synthetic:tiny-gemma3?seed=2"


@pytest.mark.slow
def test_many_clients_of_every_api_get_what_each_gets_alone():
    flags = ["--models", MODELS, "--clients", "48", "--seconds", "12", "--context", "512"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "soak.py", *flags, "--threads", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong answers 0, errors 0" in done.stdout and "identical:" in done.stdout
