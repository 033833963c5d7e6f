"""Time by op, recorded by the native core when asked."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from typing import Any

from cortiq_cpu.native import Pool


class Profile:
    """Nanoseconds by what the ops are called.

    Attributes
    ----------
    times : sums by label. calls : number of ops by label.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded."""
        self.times: dict[str, int] = defaultdict(int)
        self.calls: dict[str, int] = defaultdict(int)

    def run(self, pool: Pool, ops: Any, names: list[str]) -> None:
        """Execute ops and note the time of each."""
        spent = (ctypes.c_int64 * len(ops))()
        pool.run(ops, len(ops), spent)
        for name, time in zip(names, spent, strict=True):
            self.times[name] += time
            self.calls[name] += 1
