"""Facts about this machine: processor, memory, and room for models."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path
from typing import Any

FEATURES = (
    "avx", "avx2", "fma", "avx512f", "avx512bw", "avx_vnni", "avx512_vnni", "amx_int8",
    "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip
"""Features of processors that kernels may use, as Linux names them."""

BYTES_PER_PARAMETER = {"4 bits": 0.6, "8 bits": 1.15, "16 bits": 2.1}
"""What a parameter takes in memory, scales and everything else of a model included, roughly."""
SPARED = 0.85
"""Part of the free memory that a model may take; the rest is for its state and for others."""


def processor() -> dict[str, Any]:
    """Return name, cores this process may use, and features that kernels may use."""
    text = _read("/proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    return {
        "name": name[1] if name else platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": cores(),
        "features": [feature for feature in FEATURES if feature in known],
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> dict[str, int | None]:
    """Return total and free bytes, within a container's limit; None where they are unknown."""
    text = _read("/proc/meminfo")
    total, free = (_kibibytes(text, name) for name in ("MemTotal", "MemAvailable"))
    if total is None and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        used = _read("/sys/fs/cgroup/memory.current").strip()
        left = int(limit) - int(used or 0)
        total = min(int(limit), total or int(limit))
        free = min(left, left if free is None else free)
    return {"total": total, "free": free}


def _kibibytes(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def disk(folder: Path) -> dict[str, Any]:
    """Return the free bytes where a folder is or will be, and whether it can be written."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free: int | None = shutil.disk_usage(place).free
    except OSError:
        free = None
    return {"folder": str(folder), "free": free, "writable": os.access(place, os.W_OK)}


def room_for(free: int) -> dict[str, float]:
    """Return the billions of parameters that fit into memory, by bits of a weight: roughly."""
    return {
        bits: round(free * SPARED / size / 1e9, 1) for bits, size in BYTES_PER_PARAMETER.items()
    }
