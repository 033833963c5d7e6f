"""MiniCPM-V 4.7: the tower of 4.6; rows have positions on the canvas that their slices make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir.images import ImageRows
from cortiq.numerics.rope import Sections
from cortiq.vision import minicpmv4_6
from cortiq.vision.canvas import Canvas, canvas_of
from cortiq.vision.config import TEXT, sight_values
from cortiq.vision.minicpmv4_6 import KEPT

ARCHITECTURES = ("minicpmv4_7",)
KEYS = minicpmv4_6.KEYS
NAMES, PREFIXES, build = minicpmv4_6.NAMES, minicpmv4_6.PREFIXES, minicpmv4_6.build
MARKERS = ("image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")
SECTIONS = (11, 11, 10)


@dataclass(frozen=True, kw_only=True)
class Config(minicpmv4_6.Config):
    """Fields of `MiniCPMV4_7Config`: the ids of `<image>`, `</image>`, `<slice>`, `</slice>` and of
    the end of a line, beside those of 4.6.

    Attributes
    ----------
    sections : rotary pairs of the text model by axis.
    """

    image_start_id: int
    image_end_id: int
    slice_start_id: int
    slice_end_id: int
    newline_id: int
    sections: tuple[int, ...] = SECTIONS


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    text = whole.get(TEXT)
    rope = text.get("rope_parameters") if isinstance(text, Mapping) else None
    sections = rope.get("mrope_section") if isinstance(rope, Mapping) else None
    found = sight_values(whole, *KEPT, *MARKERS, image_token="image_token_id")
    return found | ({} if sections is None else {"sections": sections})


class Processor(minicpmv4_6.Processor):
    """Slices as 4.6 has them, beside one another on a canvas."""

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        super().__init__(config, given)
        if len(config.sections) != 3:
            raise FormatError(f"mrope_section is {list(config.sections)}", where="config")
        if config.merger_times != 1:
            raise UnsupportedError(f"merger_times = {config.merger_times}", where="config")
        self.rows = ImageRows(sections=Sections(config.sections, interleaved=True))
        self.markers = frozenset(getattr(config, name) for name in MARKERS)

    def canvas(
        self, whole: tuple[int, int], part: tuple[int, int], grid: tuple[int, int]
    ) -> Canvas:
        """Return the canvas of the image's rows."""
        (height, width), (down, across) = whole, part
        unit = self.unit
        return canvas_of((height // unit, width // unit), (down // unit, across // unit), *grid)
