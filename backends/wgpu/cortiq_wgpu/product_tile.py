"""Tiles of a product: their sizes, and what of a format lies in workgroup memory.

Rows come in two planes of bytes and codes as bytes, four to a word, for the device's instruction
that multiplies these. Where codes have more than 8 bits, rows and codes are integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cortiq_wgpu.packing import CodePacking
from cortiq_wgpu.tuning import ProductTuning

ACROSS = 16
"""Lanes of a row of them in a workgroup."""


@dataclass(frozen=True)
class ProductTile:
    """The tile of a format.

    Parameters
    ----------
    rows, outputs : of a lane, multiples of 4. down : lanes of a column of them.
    """

    form: CodePacking
    rows: int
    outputs: int
    down: int

    @property
    def words(self) -> bool:
        """Check whether values are words of four bytes."""
        return not self.form.wide

    @property
    def planes(self) -> int:
        """Return the planes of rows."""
        return 1 + self.words

    @property
    def value(self) -> str:
        """Return the type of values in workgroup memory."""
        return "u32" if self.words else "i32"

    @property
    def unit(self) -> int:
        """Return the values that 16 columns are."""
        return 4 if self.words else 16

    @property
    def stage(self) -> int:
        """Return the values of a row that are in workgroup memory: of 32 columns, or of 16."""
        return 8 if self.words else 16

    @property
    def kept(self) -> bool:
        """Check whether sums of runs wait in memory: those of long blocks come rarely."""
        return self.form.block > 32

    @property
    def has_wide_minima(self) -> bool:
        """Check whether a block's minimum is multiplied by an integer sum of its own."""
        return self.form.minima and self.form.block > 32

    @property
    def cells(self) -> list[tuple[int, int]]:
        """List rows and outputs of a lane."""
        return [(i, j) for i in range(self.rows) for j in range(self.outputs)]

    @property
    def size(self) -> tuple[int, int]:
        """Return rows and outputs of a workgroup."""
        return self.down * self.rows, ACROSS * self.outputs

    @property
    def lanes(self) -> int:
        """Return the lanes of a workgroup."""
        return self.down * ACROSS

    @property
    def beside(self) -> dict[str, str]:
        """Return the words beside a group's codes, by name: WGSL of each."""
        form, found = self.form, {}
        for half in {16: (0, 1), 32: ("",)}.get(form.block, ()):
            block = "g" if form.block > 16 else f"2u * g + {half}u"
            at = f"line * $blocks + min({block}, $blocks - 1u)"
            found[f"scale{half}"] = f"s[$scale + {at}]"
            if form.minima:
                found[f"minimum{half}"] = f"s[$minimum + {at}]"
        for name, stretch, there in (
            ("sub", "sub_scale", form.scaled),
            ("off", "offset", form.offset),
        ):
            for half in ((0, 1) if form.sub == 16 else ("",)) if there else ():
                index = "g" if form.sub == 32 else f"2u * g + {half}u"
                byte = f"signed_byte(${stretch} + line * $sub_words, {index})"
                found[f"{name}{half}"] = f"bitcast<u32>({byte})"
        return found

    @property
    def turns(self) -> dict[str, int]:
        """Return how many items of each kind a workgroup fetches."""
        rows, outputs = self.size
        return {
            "row": self.stage * rows // 4 * self.planes,
            "code": 4 * outputs,
            "side": len(self.beside) * outputs,
        }


def tile_of(form: CodePacking, tuning: ProductTuning) -> ProductTile | None:
    """Return the tile of a format; None where rows are not multiplied in tiles."""
    if form.bits == 32 or (not form.block and form.planes == 2):
        return None
    return ProductTile(form, tuning.rows, tuning.outputs, tuning.down)
