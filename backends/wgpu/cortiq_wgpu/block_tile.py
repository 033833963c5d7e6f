"""How a format in blocks is multiplied in tiles: types, planes, and what is exact.

Values of rows and codes lie in workgroup memory as floats (integers for E4M3), so that a product
and its sum are one operation. Sums over a stretch of columns are exact: below 2²⁴ whatever the rows
are. Where codes are too wide for that the rows come in two planes of 8 bits. Or both are words of
four bytes, for the device's instruction that multiplies these.
"""

from __future__ import annotations

from dataclasses import dataclass

from cortiq_wgpu.packing import CodePacking
from cortiq_wgpu.tuning import ProductTuning

LARGEST_ROW = 32512
"""Largest magnitude of a quantised row's value."""
EXACT = 1 << 24
ACROSS = 16
"""Lanes of a row of them in a workgroup."""
WORKGROUP_BYTES = 16384
"""Workgroup memory that every device has."""
LIFT = 16
"""Codes of 5 bits without a zero point are taken less 16; 16 times the row's sum is added back."""


@dataclass(frozen=True)
class BlockTile:
    """What is written into the kernel of a format.

    Parameters
    ----------
    rows, outputs : of a lane, multiples of 4. down : lanes of a column of them. packed : whether values are words of four bytes,
        multiplied by the device's instruction for these; rows come in two planes then.
    """

    form: CodePacking
    rows: int
    outputs: int
    down: int = 16
    packed: bool = False

    @property
    def lifted(self) -> bool:
        """Check whether codes are taken less `LIFT`."""
        form = self.form
        return form.bits == 5 and not (form.zero or form.scaled or self.packed)

    @property
    def zero(self) -> int:
        """Return what is subtracted from stored codes."""
        return self.form.zero + LIFT * self.lifted

    @property
    def reach(self) -> int:
        """Return how many columns an exact sum of products may have."""
        largest = LIFT if self.lifted else self.form.largest
        return EXACT // (LARGEST_ROW * largest)

    @property
    def planes(self) -> int:
        """Return the planes of rows: 2 where the sum of a block, or of 16 columns, is not exact."""
        if self.form.e4m3 or self.packed:
            return 1 + self.packed
        return 1 if self.reach >= (16 if self.form.scaled else self.form.block) else 2

    @property
    def value(self) -> str:
        """Return the type of values in workgroup memory."""
        return "i32" if self.form.e4m3 else "u32" if self.packed else "f32"

    @property
    def whole(self) -> bool:
        """Check whether sums of products are integers, not floats."""
        return self.form.e4m3 or self.packed

    @property
    def nothing(self) -> str:
        """Return the sum of no products."""
        return "0" if self.whole else "0.0"

    @property
    def kept(self) -> bool:
        """Check whether sums of runs wait in memory: those of long blocks come rarely."""
        return self.form.block > 32

    @property
    def has_wide_minima(self) -> bool:
        """Check whether a block's minimum is multiplied by an integer sum of its own."""
        return self.form.minima and self.form.block > 32

    @property
    def unit(self) -> int:
        """Return the values that 16 columns are."""
        return 4 if self.packed else 16

    @property
    def stage(self) -> int:
        """Return the values of a row that are in workgroup memory: of 16 columns, or of 32."""
        return 8 if self.packed else 16

    @property
    def cells(self) -> list[tuple[int, int]]:
        """List rows and outputs of a lane."""
        return [(i, j) for i in range(self.rows) for j in range(self.outputs)]

    @property
    def tile(self) -> tuple[int, int]:
        """Return rows and outputs of a workgroup."""
        return self.down * self.rows, ACROSS * self.outputs

    @property
    def lanes(self) -> int:
        """Return the lanes of a workgroup."""
        return self.down * ACROSS

    @property
    def copies(self) -> int:
        """Return how many stages lie in workgroup memory: 2 where they fit."""
        rows, outputs = self.tile
        stage = 16 * (rows // 4 * self.planes * self.stage + (outputs // 4 + 1) * self.stage)
        stage += 4 * outputs * len(self.beside)
        return 2 if self.packed and 2 * stage <= WORKGROUP_BYTES else 1

    @property
    def in_halves(self) -> bool:
        """Check whether a sub-block's sum is taken every 16 columns."""
        narrow = self.planes == 1 and self.reach < 32
        return self.form.scaled and (self.form.sub == 16 or narrow)

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
            if there:
                for half in (0, 1) if form.sub == 16 else ("",):
                    index = "g" if form.sub == 32 else f"2u * g + {half}u"
                    byte = f"signed_byte(${stretch} + line * $sub_words, {index})"
                    found[f"{name}{half}"] = f"bitcast<u32>({byte})"
        return found

    @property
    def turns(self) -> dict[str, int]:
        """Return how many items of each kind a workgroup fetches."""
        rows, outputs = self.tile
        return {
            "row": self.stage * rows // 4 * self.planes,
            "code": 4 * outputs,
            "side": len(self.beside) * outputs,
        }


def block_tile_of(form: CodePacking, tuning: ProductTuning) -> BlockTile:
    """Return the tile of a format: lanes with two planes of rows have fewer."""
    packed = (tuning.packed or not form.block) and not form.e4m3
    sizes = tuning.block_rows, tuning.block_outputs, tuning.block_down
    one = BlockTile(form, *sizes, packed)
    large = one.planes == 2 and not one.packed
    return BlockTile(form, 4, 4) if large else one
