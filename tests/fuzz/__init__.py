"""Fuzzers: seconds in the suite (`tests/pure/test_fuzz_*.py`), minutes from the command line.

`python -m tests.fuzz.http --seconds 60`, `python -m tests.fuzz.files --seconds 60`. A finding is
printed with the seed and the round that make it again: `--seed S --first ROUND`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "pure"))  # its helpers are imported by name
