"""Senses that are read of a checkpoint: those that are asked for, and those that all have."""

from __future__ import annotations

from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.models.registry import location_of
from cortiq.vision.load import VisionFamily, sees, sound_family, vision_family
from cortiq.vision.mmproj import with_mmproj


def asked_senses(
    checkpoint: Any, images: bool, sounds: bool, media: bool
) -> tuple[Any, list[VisionFamily]]:
    """Return a checkpoint with the tower beside it, if there is one, and what reads images and
    sounds; the trunk's rows supply what the first says.

    Parameters
    ----------
    images, sounds : what is asked for; some sounds are heard without, and some with images.
    media : all that there is.

    Raises
    ------
    UnsupportedError : it has not what is asked for.
    """
    heard = [one for one in (sound_family(checkpoint),) if one is not None]
    if not (images or sounds or media):
        return checkpoint, [one for one in heard if not one.processor.asked_for]
    alone = not (images or media)
    if not sees(checkpoint) and heard:
        alone = alone or media or heard[0].processor.asked_for
    if heard and alone:
        return checkpoint, heard
    checkpoint = with_mmproj(checkpoint)
    if not heard and (found := sound_family(checkpoint)):  # of a file beside it
        heard = [found]
        if alone or not sees(checkpoint):
            return checkpoint, heard
    if alone:
        what, hint = "takes no sounds in prompts", "see docs/models.md"
        raise UnsupportedError(what, where=location_of(checkpoint), hint=hint)
    return checkpoint, [vision_family(checkpoint), *heard]
