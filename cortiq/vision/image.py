"""Images as prepared for a tower: patches, squares of them that make a row, and their text."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir.encoders import STAGE
from cortiq.ir.images import ImageRows
from cortiq.models.config import is_number
from cortiq.numerics.contract import Floats
from cortiq.numerics.pixels import Pixels, normalise
from cortiq.vision.canvas import Canvas
from cortiq.vision.decode import pixels_of

RESAMPLING: Mapping[int, str] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of filters, as a processor's file has them."""
STANDARD = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Stage:
    """Rows of a tower that are made of some rows of the one below, each of a square of them.

    Attributes
    ----------
    squares : int64 [rows, rows of a square]: the rows below that each row is made of.
    inputs : what each row supplies besides, int32 or float32 [rows, ...].
    parts : equal parts of a row below, each of which counts as a row in `squares`.
    """

    squares: npt.NDArray[np.int64]
    inputs: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    parts: int = 1


@dataclass(frozen=True)
class Tile:
    """One run of the tower: patches that see one another.

    Attributes
    ----------
    patches : float32 [patches, values].
    inputs : what each patch supplies besides, int32 or float32 [patches, ...].
    squares : int64 [rows, rows of a square]: the patches, or the rows of the last stage, that each
        row is made of.
    stages : rows of the tower between the patches and these.
    supplied : what each row of the projector supplies besides, int32 or float32 [rows, ...].
    parts : as of a stage, for `squares`.
    """

    patches: Floats
    inputs: Mapping[str, npt.NDArray[Any]]
    squares: npt.NDArray[np.int64]
    stages: tuple[Stage, ...] = ()
    supplied: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    parts: int = 1

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield all that decides the tile's rows, by name."""
        yield from {"patch": self.patches, **self.inputs, "": self.squares}.items()
        for n, stage in enumerate(self.stages):
            given = {**stage.inputs, "": stage.squares}
            yield from ((f"{STAGE.format(n)} {name}", array) for name, array in given.items())
        yield from ((f"rows {name}", array) for name, array in self.supplied.items())


@dataclass(frozen=True)
class PreparedImage:
    """An image as the model sees it.

    Attributes
    ----------
    tiles : in the order of their rows in the text.
    text : what stands for the image in the text: a token for each row, and those around.
    grid : height and width of its rows, where rows have positions on several axes.
    order : int64 [rows], the number among the rows of all tiles that each row of the text is, and
        the number after them for a row that ends a line; None for all in order.
    beside : the rows stand beside the text, which has one token for the image; `grid` is in tiles.
    canvas : positions of its text's tokens, where it decides those around rows, too.
    """

    tiles: tuple[Tile, ...]
    text: str
    grid: tuple[int, int] = (0, 0)
    order: npt.NDArray[np.int64] | None = None
    beside: bool = False
    canvas: Canvas | None = None
    medium: ClassVar[str] = "image"

    @property
    def rows(self) -> int:
        """Rows of the text that the image becomes."""
        if self.beside:
            return 1
        if self.order is not None:
            return len(self.order)
        return sum(len(tile.squares) for tile in self.tiles)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of the patches and of everything that decides their rows."""
        digest = hashlib.sha256()
        for tile in self.tiles:
            for name, array in tile.arrays():
                kind = array.dtype.newbyteorder("<")
                digest.update(json.dumps([name, str(kind), *array.shape]).encode())
                digest.update(np.ascontiguousarray(array, kind).tobytes())
        digest.update(json.dumps([self.text, *self.grid]).encode())
        if self.order is not None:
            digest.update(np.ascontiguousarray(self.order, "<i8").tobytes())
        if self.canvas is not None:
            digest.update(np.ascontiguousarray(self.canvas.positions, "<i4").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class PixelRules:
    """Rules of a processor's file for pixels.

    Attributes
    ----------
    filter : of resizing. factor, mean, deviation : see `numerics.pixels.normalise`.
    size : edges by name.
    """

    filter: str
    mean: tuple[float, ...] = STANDARD
    deviation: tuple[float, ...] = STANDARD
    factor: float = 1 / 255
    size: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any], default: PixelRules) -> PixelRules:
        """Return the rules of a processor's file; those it does not give are the family's.

        Raises
        ------
        FormatError, UnsupportedError : a value is no number, or a step is left out.
        """
        where = "preprocessor_config.json"
        for step in ("do_resize", "do_rescale", "do_normalize"):
            if given.get(step, True) is not True:
                raise UnsupportedError(f"{step} = {given[step]!r}", where=where)
        number = given.get("resample")
        if number is not None and (type(number) is not int or number not in RESAMPLING):
            raise UnsupportedError(f"resample = {number!r}", where=where)
        size = given.get("size")
        sizes = size if isinstance(size, Mapping) else {}
        sizes = {name: edge for name, edge in sizes.items() if edge is not None}
        for name, edge in sizes.items():
            if type(edge) is not int or not 0 < edge < 1 << 31:
                raise FormatError(f"size.{name} is {edge!r}", where=where)
        return cls(
            default.filter if number is None else RESAMPLING[number],
            _channels(given.get("image_mean"), default.mean, where),
            _channels(given.get("image_std"), default.deviation, where, above=0.0),
            _channels([given.get("rescale_factor") or default.factor] * 3, STANDARD, where)[0],
            sizes or default.size,
        )

    def values(self, pixels: Pixels) -> Floats:
        """Return the values of an image that has its size."""
        return normalise(pixels, self.factor, self.mean, self.deviation)


def _channels(
    given: Any, default: Sequence[float], where: str, above: float = -1e9
) -> tuple[float, ...]:
    """Return three numbers of a file."""
    if given is None:
        return tuple(default)
    good = isinstance(given, Sequence) and len(given) == 3
    if not good or not all(is_number(n) and above < n < 1e9 for n in given):
        raise FormatError(f"{given!r} are no numbers for three channels", where=where)
    return tuple(float(n) for n in given)


class ImageProcessor(ABC):
    """Makes patches of a family's images, and the text that they stand in.

    Attributes
    ----------
    marker : text that a chat template writes for an image.
    token : id of the rows of images. rows : what the trunk's rows supply besides.
    most : patches of a tile at most. numbered : text before an image, with its number in the
        prompt from 0 in place of {}; empty for none.
    between : text between the parts of a content, for templates that take a text alone; None where
        a template takes the parts. ends : ids after the rows whose rows are of the image, too.
    markers : ids of tokens around rows, where an image decides the positions of these.
    """

    medium, numbered = "image", ""
    between: str | None = None
    ends: tuple[int, ...] = ()
    markers: frozenset[int] = frozenset()
    marker: str
    token: int
    rows: ImageRows
    most: int

    def read(self, image: Any) -> Pixels:
        """Return the pixels of an image; RequestError where it cannot be read."""
        return pixels_of(image)

    @abstractmethod
    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Return an image, RGB [height, width, 3], as the model sees it."""
