"""A mask as an overlay: vectors on the inputs of `down` and `o`, and on outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cortiq.errors import UnsupportedError
from cortiq.formats.digest import file_sha256
from cortiq.ir import Program
from cortiq.models.bind import LoadedProgram
from cortiq.models.overlay_banks import Key, Overlay, OverlayPart
from cortiq.models.overlay_kinds import OverlayKind
from cortiq.numerics.contract import F32, Floats
from cortiq_masks.files import SUFFIX, read_mask
from cortiq_masks.mask import ActivationMask
from cortiq_masks.notice import NOTICE
from cortiq_masks.sites import LayerPlaces, layer_places, place_of


def mask_overlay(
    mask: ActivationMask, program: Program, sha256: str, scale: float = 1.0, where: str = "mask"
) -> Overlay:
    """Return what a mask does to the weights of a program.

    Parameters
    ----------
    program : as it was built, with its layers. sha256 : the hash that stands for the mask.
    scale : c of 1 + c·(factor − 1) and c·mean; 0 changes nothing.

    Raises
    ------
    UnsupportedError : the mask is of another model, or of a part that no overlay changes.
    """
    parts = _MaskParts(mask, program, scale, where)
    return Overlay(sha256, scale, dict(parts.members()))


class _MaskParts:
    """The parts of a mask for a program's weights."""

    def __init__(self, mask: ActivationMask, program: Program, scale: float, where: str) -> None:
        self.mask, self.scale, self.where = mask, F32(scale), where
        self.program, self.places = program, layer_places(program)

    def members(self) -> Iterator[tuple[Key, OverlayPart]]:
        """Yield what is done to each weight."""
        mask, layers = self.mask, {*self.mask.neurons, *self.mask.heads, *self.mask.means}
        for layer in sorted({*layers, *mask.closed}):
            place = place_of(self.places, layer, self.where)
            if layer in mask.closed:
                yield from self._closed(layer, place)
                continue
            if layer in mask.means:
                self._check(len(mask.means[layer]), place.width, f"means of layer {layer}")
            if layer in mask.neurons:
                yield (place.down, False), self._neurons(layer, place)
            if layer in mask.heads:
                yield (place.o, False), self._heads(layer, place)

    def _closed(self, layer: int, place: LayerPlaces) -> Iterator[tuple[Key, OverlayPart]]:
        if not place.whole or not place.ends:
            what = f"leaves out layer {layer}, which adds more than overlays change"
            raise UnsupportedError(what, where=self.where)
        for weight in place.ends:
            width = self._width(weight, 0)
            yield (weight, False), OverlayPart(after=self._factor(np.zeros(width, F32)))

    def _neurons(self, layer: int, place: LayerPlaces) -> OverlayPart:
        factors = self.mask.neurons[layer]
        if not place.down:
            what = f"masks neurons of layer {layer}, which has no feed-forward part of its own"
            raise UnsupportedError(what, where=self.where, hint="experts take no masks")
        self._check(len(factors), place.width, f"neurons of layer {layer}")
        shift = None
        means = self.mask.means.get(layer)
        if means is not None:
            shift = np.where(factors == 0, self.scale * means, F32(0))
        return OverlayPart(before=self._factor(factors), shift=shift)

    def _heads(self, layer: int, place: LayerPlaces) -> OverlayPart:
        factors = self.mask.heads[layer]
        if not place.o:
            what = f"masks heads of layer {layer}, which has no attention"
            raise UnsupportedError(what, where=self.where)
        self._check(len(factors), place.heads, f"heads of layer {layer}")
        wide = np.repeat(factors, self._width(place.o, 1) // place.heads)
        return OverlayPart(before=self._factor(wide))

    def _factor(self, values: Floats) -> Floats:
        """Return 1 + c·(value − 1), rounded once from float64."""
        made = 1.0 + float(self.scale) * (values.astype(np.float64) - 1.0)
        return made.astype(F32)

    def _width(self, weight: str, axis: int) -> int:
        return self.program.weights[weight].shape[axis]

    def _check(self, found: int, wanted: int, what: str) -> None:
        if found != wanted:
            says = f"has {found} {what}, and the model has {wanted}"
            hint = "the mask was made for another model"
            raise UnsupportedError(says, where=self.where, hint=hint)


def _read(path: Path, scale: float, loaded: LoadedProgram, program: Program) -> Overlay:
    return mask_overlay(read_mask(path), loaded.program, file_sha256(path), scale, str(path))


KIND = OverlayKind("mask", lambda path: path.suffix == SUFFIX and path.is_file(), _read, NOTICE)
"""The kind of files that hold a mask."""
