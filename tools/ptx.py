"""Find in the PTX of a kernel what the numerics contract does not allow.

Triton's interpreter cannot show what a compiler does to floats. The PTX can: it must hold no fused
multiply-add, no approximate instruction, no flush to zero, no shortened mantissa, no float atomic,
and no float add or multiply without `.rn`, which ptxas would be free to contract. What a block of
inline assembly that is marked as exact has for a division is left out: a device's self test holds
all of its results against the definition.
"""

from __future__ import annotations

import re

FORBIDDEN = {
    "a fused multiply-add": r"\bfma\.",
    "an approximate instruction": r"\.approx|\bdiv\.full|\bex2\.|\blg2\.|\brsqrt\.|\bsin\.|\bcos\.",
    "flush to zero": r"\.ftz\b",
    "TF32": r"\.tf32\b",
    "a float atomic": r"\b(?:atom|red)\.\S*add\S*\.f\d+",
    "a float operation that ptxas may contract": r"\b(?:add|sub|mul|mad)\.f\d+\b",
}


EXACT = re.compile(r"\{\s*// exact\b[^}]*\}")
"""A block of inline assembly whose result is the correctly rounded one."""


def breaches(ptx: str) -> list[str]:
    """Return a line for each kind of forbidden instruction, with the first one of it."""
    found, ptx = [], EXACT.sub("", ptx)
    for what, pattern in FORBIDDEN.items():
        lines = [line.strip() for line in ptx.splitlines() if re.search(pattern, line)]
        if lines:
            found.append(f"{what}: {len(lines)} times, first {lines[0]!r}")
    return found
