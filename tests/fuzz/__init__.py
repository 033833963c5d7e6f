"""Fuzzers: seconds of them in the suite, minutes by `make fuzz`; in `tests`: `python -m fuzz.NAME`.

A finding is printed with what makes it again, such as `--seed S --first ROUND`.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "pure")]
