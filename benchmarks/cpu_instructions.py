"""Count the instructions of the CPU core's kernels of one row, from the object code.

    python benchmarks/cpu_instructions.py [OBJECT] [--dot vpmaddwd]

OBJECT is a compiled `matmul_*.o` (by default that of AVX2 among `backends/cpu/build`); `objdump`
takes it apart. Of each layout's `direct` kernel the loop with the fewest instructions is taken that
has dot products in it; nothing is run. A dot product of 256 bits multiplies 16 weights. `bound` is
what they cost if codes were there already: the dot product, its sum, the load of the row's pair.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(\S.*)?$")
NAME = re.compile(r"^[0-9a-f]+ <direct_(\w+)>:")
TWICE = ("W16", "E4M3", "NF4", "FP4")
"""Layouts of which a weight takes two products."""
BOUND = 3
"""Instructions of a dot product whose codes lie ready: load of a pair, product, sum."""
Listing = list[tuple[int, str, str]]


def listings(path: Path) -> Iterator[tuple[str, Listing]]:
    """Yield each kernel's layout, and its instructions: address, name, operands."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    layout, found = "", []
    for line in text.split("\n"):
        if line.endswith(">:"):
            if layout:
                yield layout, found
            named = NAME.match(line)
            layout, found = (named[1] if named else ""), []
        elif parts := LINE.match(line):
            found.append((int(parts[1], 16), parts[2], parts[3] or ""))
    if layout:
        yield layout, found


def loops(listing: Listing) -> Iterator[Listing]:
    """Yield the instructions between each jump back and where it leads."""
    for place, (address, name, operands) in enumerate(listing):
        target = re.match(r"[0-9a-f]+", operands)
        if name.startswith("j") and target and int(target[0], 16) <= address:
            yield [one for one in listing[: place + 1] if one[0] >= int(target[0], 16)]


def innermost(listing: Listing, dot: str) -> tuple[int, int] | None:
    """Return the instructions and dot products of the shortest loop that has any."""
    counts = [(len(loop), sum(name == dot for _, name, _ in loop)) for loop in loops(listing)]
    return min((both for both in counts if both[1]), default=None)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("object", nargs="?", type=Path, help="a compiled matmul_*.o")
    parser.add_argument("--dot", default="vpmaddwd", help="the instruction that multiplies pairs")
    given = parser.parse_args()
    built = Path(__file__).parent.parent / "backends" / "cpu" / "build"
    path = given.object or next(built.rglob("matmul_avx2.o"))
    print("| layout | instructions of the loop | products | instructions for 16 weights | bound |")
    print("|---|---|---|---|---|")
    for layout, listing in sorted(listings(path)):
        found = innermost(listing, given.dot)
        if found:
            planes = 1 + (layout in TWICE)
            each = planes * found[0] / found[1]
            print(f"| {layout} | {found[0]} | {found[1]} | {each:.1f} | {planes * BOUND} |")


if __name__ == "__main__":
    main()
