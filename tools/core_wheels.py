"""Check that wheels of the CPU core are of the stable ABI and hold the compiled library.

    python tools/core_wheels.py WHEEL …

The core's extension is optional, so that a failed compilation still makes a wheel: one without the
library, which must not be published. Exit 1 if a wheel is such a one.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def fault(wheel: Path) -> str | None:
    """Return what is wrong with a wheel, or None."""
    if "-cp311-abi3-" not in wheel.name:
        return "not of the stable ABI"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    libraries = [name for name in names if name.startswith("cortiq_cpu/_native.")]
    return None if len(libraries) == 1 else f"holds {len(libraries)} libraries"


def main() -> int:
    """Check each wheel that is named; return the exit code."""
    faults = {name: fault(Path(name)) for name in sys.argv[1:]}
    for name, found in faults.items():
        print(f"{name}: {found or 'right'}")
    return int(not faults or any(faults.values()))


if __name__ == "__main__":
    sys.exit(main())
