"""Fuzzers: `make fuzz` runs them all; in the folder `tests`, `python -m fuzz.NAME` runs one."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "pure")]
