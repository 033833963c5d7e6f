"""Images of callers as pixels: files, bytes, arrays and Pillow's images, within limits.

Pillow decodes; it is imported when the first image comes (`pip install pillow`).
"""

from __future__ import annotations

import io
import os
import warnings
from typing import Any

import numpy as np

from cortiq.errors import RequestError, shown
from cortiq.formats.given_files import read_given
from cortiq.numerics.pixels import Pixels

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""Formats that are decoded; of an animation the first frame."""
WHY_LETTERS = 200
MAX_BYTES = 32 << 20
MAX_PIXELS = 1 << 26
MAX_SIDE = 1 << 15
"""An image's file, and what it is decoded to, at most: 192 MiB of grey levels."""


def pixels_of(image: Any) -> Pixels:
    """Return an image as RGB, uint8 [height, width, 3].

    Parameters
    ----------
    image : bytes of a file, a path, an array (uint8 [height, width] or [height, width, 3]), or an
        image of Pillow.

    Raises
    ------
    RequestError : it is none of these, too large, damaged, or Pillow is not installed.
    """
    if isinstance(image, np.ndarray):
        return _of_array(image)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return _decoded(bytes(image))
    if isinstance(image, (str, os.PathLike)):
        return _decoded(read_given(image, MAX_BYTES), str(image))
    if hasattr(image, "convert") and hasattr(image, "size"):
        _check_size(image.size)
        return _converted(image, own=False)
    hint = "give a path, the bytes of a file, an array, or an image of Pillow"
    raise RequestError(f"no image: {shown(image)}", where="image", hint=hint)


def _of_array(image: np.ndarray) -> Pixels:
    grey = image.ndim == 2
    if image.dtype != np.uint8 or not (grey or (image.ndim == 3 and image.shape[2] == 3)):
        what = f"an array of {image.dtype}{list(image.shape)} is no image"
        hint = "give grey levels: uint8 [height, width, 3], RGB"
        raise RequestError(what, where="image", hint=hint)
    _check_size(image.shape[1::-1])
    return np.repeat(image[..., None], 3, axis=2) if grey else np.array(image)


def _check_size(size: Any) -> None:
    width, height = size
    if not 0 < width * height <= MAX_PIXELS or max(width, height) > MAX_SIDE:
        what = f"an image of {width} × {height} pixels"
        hint = f"at most {MAX_PIXELS} pixels, no side longer than {MAX_SIDE}: make it smaller"
        raise RequestError(what, where="image", hint=hint)


def pillow() -> Any:
    """Import Pillow's `Image`; RequestError if it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        hint = "pip install pillow"
        raise RequestError("images need Pillow", where="image", hint=hint) from None
    return Image


def _decoded(data: bytes, name: str = "image") -> Pixels:
    """Decode a file, which errors name; its size is checked before any pixel is."""
    if len(data) > MAX_BYTES:
        what = f"an image's file of more than {MAX_BYTES} bytes"
        raise RequestError(what, where=name, hint="make it smaller")
    image_module = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = image_module.open(io.BytesIO(data), formats=FORMATS)
            _check_size(image.size)
            return _converted(image, own=True)
    except RequestError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        unknown = type(error).__name__ == "UnidentifiedImageError"
        why = "its form is not known" if unknown else str(error) or type(error).__name__
        what = f"the image cannot be decoded: {why[:WHY_LETTERS]}"
        hint = f"give a whole {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
        raise RequestError(what, where=name, hint=hint) from None


def _converted(image: Any, *, own: bool) -> Pixels:
    """Return the pixels of an image of Pillow, upright as its EXIF orientation says.

    Parameters
    ----------
    own : the image may be changed: it is ours, and a copy of a large one takes much memory.
    """
    from PIL import ImageOps

    if own:
        ImageOps.exif_transpose(image, in_place=True)
    else:
        image = ImageOps.exif_transpose(image)
    image = image if image.mode == "RGB" else image.convert("RGB")
    return np.array(image, np.uint8)
