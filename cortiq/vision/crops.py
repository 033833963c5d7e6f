"""Pan and scan: parts of a long image beside the whole of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from cortiq.errors import FormatError, UnsupportedError
from cortiq.models.config import is_number
from cortiq.numerics.pixels import Pixels

WHERE = "preprocessor_config.json"
MOST_CROPS = 64
DEFAULTS: Mapping[str, Any] = {
    "min_crop_size": 256, "max_num_crops": 4, "min_ratio_to_activate": 1.2,
}  # fmt: skip


@dataclass(frozen=True)
class PanAndScan:
    """Rules by which the longer edge of an image is divided.

    Attributes
    ----------
    least : edge of a crop at least. most : crops at most. ratio : of an image's edges, from which
        on it has crops.

    Source: Gemma 3.
    """

    least: int
    most: int
    ratio: float

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self | None:
        """Return the rules of a processor's file; None where it asks for no crops.

        Raises
        ------
        FormatError, UnsupportedError : a value is none of these; a crop could have no pixels.
        """
        if (asked := given.get("do_pan_and_scan")) not in (None, False, True):
            raise FormatError(f"do_pan_and_scan = {asked!r}", where=WHERE)
        if not asked:
            return None
        rules = {
            f"pan_and_scan_{key}": default if given.get(f"pan_and_scan_{key}") is None
            else given[f"pan_and_scan_{key}"]
            for key, default in DEFAULTS.items()
        }  # fmt: skip
        least, most, ratio = rules.values()
        whole = all(type(n) is int and n > 0 for n in (least, most))
        if not whole or not is_number(ratio) or ratio <= 0:
            what = ", ".join(f"{key} = {value!r}" for key, value in rules.items())
            raise FormatError(what, where=WHERE)
        if not most <= min(least, MOST_CROPS):
            what = f"pan and scan makes {most} crops of {least} pixels"
            raise UnsupportedError(what, where=WHERE)
        return cls(least, most, ratio)

    def cut(self, pixels: Pixels) -> list[Pixels]:
        """Return the crops of an image from its first edge to its last; none of one near a square.

        So many squares as the longer edge holds, each of `least` pixels or more, and two or more.
        The last has what is left.
        """
        axis = 0 if pixels.shape[0] > pixels.shape[1] else 1
        short, long = sorted(pixels.shape[:2])
        if long / short < self.ratio:
            return []
        count = min(max(min(math.floor(long / short + 0.5), long // self.least), 2), self.most)
        size = math.ceil(long / count)
        if min(size, short) < self.least:
            return []
        starts = range(0, size * count, size)
        if axis == 0:
            return [pixels[at : at + size] for at in starts]
        return [pixels[:, at : at + size] for at in starts]
