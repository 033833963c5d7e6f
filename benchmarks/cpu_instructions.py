"""Count the instructions of the CPU core's matrix kernels, from the object code.

    python benchmarks/cpu_instructions.py [OBJECT] [--dot vpmaddwd] [--kernels direct]
    python benchmarks/cpu_instructions.py build/aarch64/objects/matmul_neon_dotprod.o --dot sdot

OBJECT is a compiled `matmul_*.o` (by default that of AVX2 among `backends/cpu/build`); `objdump`
takes it apart, that of the cross compiler for aarch64. Of each layout's kernel (`direct`: few rows;
`one`: one, on bytes; `planes`, `rows`, `block`: many) the inner loop that has dot products in it is
taken; nothing is run. Many rows: for 16 products of a weight and a row instead of 16 weights;
layouts whose kernels are the same appear once. `bound` is what 16 weights cost if codes were there
already: the dot products, their sums where these are apart, and with AVX2 the load of the row's
pair.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(\S.*)?$")
NAME = re.compile(r"^[0-9a-f]+ <([a-z]+)_([A-Z]\w+)[.\w]*>:")
TARGET = re.compile(r"\b([0-9a-f]+) <")
TWICE = ("W16", "E4M3", "NF4", "FP4")
"""Layouts of which a weight takes two products."""
DOTS = {
    "vpmaddwd": (16, 3), "vpmaddubsw": (16, 2.5), "smlal": (4, 4), "smlal2": (4, 4), "sdot": (8, 2),
    "usdot": (8, 2), "smmla": (16, 1),
}  # fmt: skip
"""Weights that a dot product meets, rows being 16-bit, and instructions for 16 of them at best."""
Listing = list[tuple[int, str, str]]


def listings(path: Path, kernels: str) -> Iterator[tuple[str, Listing]]:
    """Yield each kernel's layout, and its instructions: address, name, operands."""
    objdump = "aarch64-linux-gnu-objdump" if "neon" in path.name else "objdump"
    command = [objdump, "-d", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    layout, found = "", []
    for line in text.split("\n"):
        if line.endswith(">:"):
            if layout:
                yield layout, found
            named = NAME.match(line)
            layout, found = (named[2] if named and named[1] == kernels else ""), []
        elif parts := LINE.match(line):
            found.append((int(parts[1], 16), parts[2], parts[3] or ""))
    if layout:
        yield layout, found


def loops(listing: Listing) -> Iterator[Listing]:
    """Yield the instructions between each jump back and where it leads."""
    for place, (address, name, operands) in enumerate(listing):
        target = TARGET.search(operands)
        jumps = name.startswith(("j", "b", "cb", "tb")) and not name.startswith(("bl", "bi"))
        if jumps and target and int(target[1], 16) <= address:
            yield [one for one in listing[: place + 1] if one[0] >= int(target[1], 16)]


def innermost(listing: Listing, dots: Sequence[str], kernels: str) -> tuple[int, int] | None:
    """Return the instructions and dot products of the shortest loop that has any.

    Of many rows: of the loop with the fewest instructions for each, which takes the most rows.
    """
    counts = [(len(loop), sum(name in dots for _, name, _ in loop)) for loop in loops(listing)]
    found = [both for both in counts if both[1]]
    if kernels in ("direct", "one"):
        return min(found, default=None)
    return min(found, key=lambda both: both[0] / both[1], default=None)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("object", nargs="?", type=Path, help="a compiled matmul_*.o")
    parser.add_argument("--dot", nargs="*", default=["vpmaddwd"], choices=DOTS)
    kinds = ("direct", "one", "planes", "rows", "block")
    parser.add_argument("--kernels", default="direct", choices=kinds)
    given = parser.parse_args()
    built = Path(__file__).parent.parent / "backends" / "cpu" / "build"
    path = given.object or next(built.rglob("matmul_avx2.o"))
    print("| layout | instructions of the loop | products | instructions for 16 weights | bound |")
    print("|---|---|---|---|---|")
    weights, bound = DOTS[given.dot[0]]
    for layout, listing in sorted(listings(path, given.kernels)):
        found = innermost(listing, given.dot, given.kernels)
        if found:
            planes = 1 + (layout in TWICE)
            each = planes * 16 * found[0] / (weights * found[1])
            print(f"| {layout} | {found[0]} | {found[1]} | {each:.1f} | {planes * bound} |")


if __name__ == "__main__":
    main()
