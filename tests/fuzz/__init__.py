"""Fuzzers: seconds in the suite, minutes with `make fuzz`; `python -m fuzz.NAME` in `tests` runs one.

A finding is printed with what makes it again, such as `--seed S --first ROUND`.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "pure")]
